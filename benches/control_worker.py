"""The worker of `benches.dataflow_control`, in a module of its own so that a fork server can import it once."""

from __future__ import annotations

import ctypes

from softs_fast.dataflow.link.control import ControlClient, Ended

PAYLOAD = bytes(64)
HOLD = b"hold"
HOLD_S = 600


def work(endpoint: str, worker: int) -> None:
    """Answer each message from Python, until the connection ends."""
    client = ControlClient(endpoint, worker)
    client.publish("spec", PAYLOAD)
    while True:
        for item in client.receive():
            if isinstance(item, Ended):
                return
            client.send(item)
            if item == HOLD:
                ctypes.PyDLL(None).usleep(HOLD_S * 1_000_000)
