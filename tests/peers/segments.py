"""What lies in /dev/shm: segments of softs, which no process removes when their owner was killed, and our own."""

import os
import struct
from collections.abc import Callable, Iterable
from pathlib import Path

from waiting import eventually

from softs_fast import _core

# As in docs/segment.md: the length of the control block, which ends a segment, and where it names the owning process.
BLOCK_BYTES, OWNER_AT = 4096, 40


def remove(addresses: Iterable[str]) -> None:
    """Remove segments that may still be there."""
    for address in addresses:
        Path("/dev/shm", address).unlink(missing_ok=True)


def sweep_until(is_gone: Callable[[], bool]) -> None:
    """Sweep until it holds: a sweep leaves what another process has locked, as one that sweeps at this moment."""

    def is_swept() -> bool:
        _core.sweep()
        return is_gone()

    eventually(is_swept, "the segments of the dead are gone")


def owner_of(path: Path) -> int | None:
    """The process that has made a segment; None for one of softs."""
    with path.open("rb") as file:
        file.seek(-BLOCK_BYTES, os.SEEK_END)
        block = file.read()
    owner: int | None = (
        struct.unpack_from("<I", block, OWNER_AT)[0] if block.startswith(b"SLSEGMNT") else None
    )
    return owner


def is_of_softs(path: Path) -> bool:
    """Whether a named segment is one of softs: ours are complete before they have a name."""
    return path.stat().st_size < BLOCK_BYTES or owner_of(path) is None


def made_by(pids: set[int]) -> list[str]:
    """The names of the segments that these processes have made and not removed."""
    found = []
    for pattern in ("sl_*", ".sl_*"):
        for path in Path("/dev/shm").glob(pattern):
            try:
                is_theirs = owner_of(path) in pids
            except OSError:  # it has gone, or is being made
                continue
            found += [path.name] * is_theirs
    return sorted(found)
