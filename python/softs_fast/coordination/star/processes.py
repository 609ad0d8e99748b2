"""The processes of ranks: which they are, and what has become of them, as far as this machine knows."""

from __future__ import annotations

import socket

from ... import identity
from .messages import StarProcess

__all__ = ["state_of", "this_process"]


def this_process(worker_id: str = "") -> StarProcess:
    """Return this process."""
    pid, started, _ = identity.this_process()
    return StarProcess(worker_id, identity.host_id(), socket.gethostname(), pid, started)


def state_of(process: StarProcess) -> str:
    """Return what has become of a process of this machine: "has ended", "is stopped", or empty if it is not known."""
    if not process.machine or process.machine != identity.host_id():
        return ""
    namespace = identity.this_process().namespace
    if not identity.Process(process.pid, process.started, namespace).is_alive():
        return "has ended"
    return _TEXTS.get(identity.state_of(process.pid), "")


_TEXTS = {"ended": "has ended", "stopped": "is stopped", "traced": "is stopped"}
