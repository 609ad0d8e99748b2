"""Files that are whole or not there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

__all__ = ["write_atomically", "write_bytes"]


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file as `write_atomically` does.

    Raises:
        OSError: it cannot be written; what was there before is there.
    """

    def write(file: BinaryIO) -> None:
        file.write(data)

    write_atomically(path, write)


def write_atomically(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Write a file of which only this user may read: a new one, synced, then renamed, then the folder synced.

    Raises:
        OSError: it cannot be written; what was there before is there.
    """
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            try:
                write(file)
            except RuntimeError as error:
                # What torch makes of an error of the file.
                cause = error.__cause__ or error.__context__
                raise cause if isinstance(cause, OSError) else OSError(str(error)) from None
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
