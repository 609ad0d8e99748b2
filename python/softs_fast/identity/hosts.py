"""The host that a process runs on, as far as it matters for shared memory and for questions about processes."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ..errors import SegmentError
from .processes import this_process

__all__ = ["boot_id", "host_id"]

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@cache
def boot_id() -> str:
    """Return a text that no two running kernels have in common; empty where /proc is masked."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def host_id() -> str:
    """Return a text that processes have in common which can ask about each other; empty where /proc is masked.

    It names the boot and the pid namespace, never the name of the host: clones of a machine have the same one.
    """
    try:
        return f"{boot_id()} {this_process().namespace}" if boot_id() else ""
    except SegmentError:
        return ""
