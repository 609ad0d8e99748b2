"""The processes of ranks: which they are, and what has become of them, as far as this machine knows."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

from ... import _kernels
from .messages import StarProcess

__all__ = ["state_of", "this_process"]

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def this_process(worker_id: str = "") -> StarProcess:
    """Return this process."""
    pid, started, pid_namespace = _kernels.this_process()
    boot_id = ""
    with suppress(OSError):
        boot_id = _BOOT_ID.read_text().strip()
    return StarProcess(worker_id, f"{boot_id}.{pid_namespace}", socket.gethostname(), pid, started)


def state_of(process: StarProcess) -> str:
    """Return what has become of a process of this machine: "has ended", "is stopped", or empty if it is not known."""
    own = this_process()
    if not process.machine or process.machine != own.machine:
        return ""
    if not _kernels.is_alive(process.pid, process.started, _kernels.this_process()[2]):
        return "has ended"
    try:
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "has ended"
    if state in "ZX":
        return "has ended"
    return "is stopped" if state in "Tt" else ""
