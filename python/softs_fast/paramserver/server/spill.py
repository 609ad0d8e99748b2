"""Room for uploads in files that have no name: above the budget of memory, and gone with the process, however it ends."""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path

__all__ = ["room_on_disk"]

_ZEROS = bytes(1 << 20)


def room_on_disk(folder: Path, n: int) -> memoryview:
    """Return n bytes of a new file, which only this process has. Its blocks are taken now, so that none is missing later.

    Args:
        folder: of the file.
        n: bytes, 1 or more.

    Raises:
        OSError: the disk has not so many, or the folder cannot be written.
    """
    # Without a name, or unlinked at once; of mode 0600.
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, n)
        else:
            left = n
            while left:
                left -= file.write(_ZEROS[:left])
        # A page of a mapping that has no block would end the process with SIGBUS.
        return memoryview(mmap.mmap(file.fileno(), n))
