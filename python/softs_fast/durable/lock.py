"""Locks between processes that end with the process that holds them."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from ..errors import ConfigError
from .files import check_private, open_plain, write_all

__all__ = ["Lock"]

#: Locks of one process do not exclude each other, and closing any descriptor of the file ends them: which process
#: holds which file, by device and inode. A fork inherits the entries of its parent but not the locks.
_held: dict[tuple[int, int], int] = {}


class Lock:
    """A lock on a file, held until `close` or the end of the process.

    It is a lock of `lockf`: forks of this process, such as workers of a DataLoader, do not hold it on after this
    process was killed, and it works between hosts over NFS 4.

    Args:
        path: The file; it holds the number of the process and stays when the lock ends.
        what: Name of what is locked, for errors.

    Raises:
        ConfigError: This or another process holds the lock, or other users can open the file.
        OSError: The file cannot be opened.
    """

    def __init__(self, path: Path, what: str) -> None:
        with suppress(FileNotFoundError):
            # A file that is held here must not be opened: closing it again would end the lock.
            if _held.get(_identity(os.lstat(path))) == os.getpid():
                raise ConfigError(f"{what} is in use by this process; close it first")
        self._fd: int | None = open_plain(path, os.O_RDWR | os.O_CREAT, what)
        try:
            check_private(self._fd, what)
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(self._fd, 20, 0).decode(errors="replace").strip() or "?"
                raise ConfigError(
                    f"{what} is in use by process {holder}; end that process, or use another path"
                ) from None
            os.ftruncate(self._fd, 0)
            write_all(self._fd, f"{os.getpid()}\n".encode())
        except BaseException:
            os.close(self._fd)
            raise
        self._identity = _identity(os.fstat(self._fd))
        _held[self._identity] = os.getpid()

    def close(self) -> None:
        """Release the lock; in a fork, only its copy of the descriptor. Idempotent."""
        fd, self._fd = self._fd, None
        if fd is not None:
            _held.pop(self._identity, None)
            os.close(fd)


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
