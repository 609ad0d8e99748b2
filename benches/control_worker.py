"""The worker of `benches.dataflow_control`, in a module of its own so that a fork server can import it once."""

from __future__ import annotations

import ctypes
from contextlib import suppress

from softs_fast.dataflow.link.messages import Abort
from softs_fast.dataflow.link.stream import WorkerStream, join
from softs_fast.errors import PeerLost

#: Messages with a text of 64 bytes, and one that has the worker hold the GIL.
PAYLOAD = Abort(1, "x" * 64)
HOLD = Abort(1, "hold")
HOLD_S = 600


def work(endpoint: str, worker: int) -> None:
    """Answer each message from Python, until the connection ends."""
    stream = WorkerStream(join(endpoint, None, worker))
    stream.publish("spec", bytes(64))
    with suppress(PeerLost):
        while True:
            for message in stream.receive(None):
                stream.send(message)
                if message == HOLD:
                    ctypes.PyDLL(None).usleep(HOLD_S * 1_000_000)
