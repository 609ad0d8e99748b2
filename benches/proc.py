"""A process's CPU time, memory and mapped segments, as the kernel reports them."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Resident:
    """Resident memory of a process, bytes.

    Attributes:
        own: everything but segments; shared libraries count in full.
        segments: files in /dev/shm.
    """

    own: int
    segments: int


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has used so far, all its threads together."""
    # The kernel's numbering of CPU clocks (clock_getcpuclockid): the inverted pid, then 2 for the
    # scheduler's nanoseconds.
    return time.clock_gettime((~pid << 3) | 2)


def segments(pid: int) -> set[Path]:
    """Files in /dev/shm that a process has mapped now."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    return {Path(name) for name in re.findall(r"(/dev/shm/[^\s]+)$", maps, re.MULTILINE)}


def resident(pid: int) -> Resident:
    """Resident memory of a process now."""
    own = shared = 0
    in_segment = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            in_segment = " /dev/shm/" in line
        elif line.startswith("Rss:"):
            n_bytes = int(line.split()[1]) * 1024
            shared, own = (shared + n_bytes, own) if in_segment else (shared, own + n_bytes)
    return Resident(own, shared)
