"""A file with one content, which is whole and unaltered or refused.

A line that names the format and the kind of the file, length and SHA-256 of the content, content.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Protocol

from ..errors import ConfigError, DamagedError
from .files import check_private, open_plain, write_file

__all__ = ["Writable", "read_sealed", "write_sealed"]

_HEAD = struct.Struct("<Q32s")


class Writable(Protocol):
    """What a content is written to."""

    def write(self, data: bytes | memoryview, /) -> int:
        """Write all of the bytes; return how many they are."""
        ...

    def flush(self) -> None:
        """Do nothing: the bytes are synced when the content is complete."""
        ...


def write_sealed(path: Path, kind: str, content: bytes | Callable[[Writable], object]) -> None:
    """Replace a file durably, as `write_file` does, with its length and digest.

    Args:
        path: The file; its new mode is 0600.
        kind: Word that tells files of one purpose from others.
        content: The bytes, or a function that writes them to the object it is given, such as by ``torch.save``.

    Raises:
        OSError: The file cannot be written; the old one is untouched.
    """

    def write(file: BinaryIO) -> None:
        magic = _magic(kind)
        file.write(magic + bytes(_HEAD.size))
        hashed = _Hashed(file)
        if callable(content):
            content(hashed)
        else:
            hashed.write(content)
        file.seek(len(magic))
        file.write(_HEAD.pack(hashed.n_bytes, hashed.digest.digest()))

    write_file(path, write)


def read_sealed(path: Path, kind: str, *, most_bytes: int, what: str, private: bool = True) -> bytes:
    """Return the content of a file that `write_sealed` wrote.

    Args:
        path: The file.
        kind: The word that it was written with.
        most_bytes: Largest content that is read.
        what: Name of the file for errors.
        private: Whether a file that others can read is refused.

    Raises:
        ConfigError: The file is of another kind, too long, or others can read it.
        DamagedError: The file was cut short, extended or altered.
        OSError: The file cannot be read; FileNotFoundError if it does not exist.
    """
    magic = _magic(kind)
    descriptor = open_plain(path, os.O_RDONLY, what)
    with open(descriptor, "rb") as file:
        if private:
            check_private(descriptor, what)
        size = os.fstat(descriptor).st_size
        first = file.read(len(magic))
        if first != magic:
            found = first.partition(b"\n")[0].decode(errors="backslashreplace")
            raise ConfigError(f"{what} begins with {found!r}, expected {magic.decode().strip()!r}")
        head = file.read(_HEAD.size)
        n_bytes, digest = _HEAD.unpack(head) if len(head) == _HEAD.size else (-1, b"")
        n_found = size - len(magic) - _HEAD.size
        if n_bytes != n_found:
            raise DamagedError(
                f"{what} is damaged: expected {n_bytes:,} bytes of content, got {max(n_found, 0):,}; restore a copy"
            )
        if n_bytes > most_bytes:
            raise ConfigError(f"{what} has {n_bytes:,} bytes, expected at most {most_bytes:,}")
        content = file.read(n_bytes)
    if hashlib.sha256(content).digest() != digest:
        raise DamagedError(f"{what} is damaged: its content was altered; restore a copy")
    return content


def _magic(kind: str) -> bytes:
    return f"softs-fast file 1 {kind}\n".encode()


class _Hashed:
    """A file that counts and hashes the bytes written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.n_bytes = 0
        self.digest = hashlib.sha256()

    def write(self, data: bytes | memoryview, /) -> int:
        view = memoryview(data).cast("B")
        self._file.write(view)
        self.digest.update(view)
        self.n_bytes += len(view)
        return len(view)

    def flush(self) -> None:
        pass
