"""Shared memory that peers of softs leave behind."""

import contextlib
from pathlib import Path

SHM = Path("/dev/shm")


def segments() -> set[Path]:
    """The names of the segments that there are, hidden ones too."""
    return {path for pattern in ("sl_*", ".sl_*") for path in SHM.glob(pattern)}


def remove_abandoned(before: set[Path]) -> None:
    """Remove segments that are not among those from before and that no process uses: others may run tests, too."""
    # First what there is, then what is used: a segment that comes between the two is not looked at.
    new = segments() - before
    used = {inode for maps in Path("/proc").glob("[0-9]*/maps") for inode in _mapped(maps)}
    for path in new:
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino not in used:
                path.unlink()


def _mapped(maps: Path) -> set[int]:
    try:
        lines = maps.read_text().splitlines()
    except OSError:  # it has ended
        return set()
    return {int(line.split()[4]) for line in lines if "/dev/shm/" in line}
