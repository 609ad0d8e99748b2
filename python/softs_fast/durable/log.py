"""A file of records to which records are appended durably.

A line that names the format and the kind of the log, then records: length of the body, CRC-32 of the body, CRC-32 of
these two, body. Each record is on disk before the next one begins, so a crash can only cut the last one short, or
leave some of its sectors unwritten. That suffix is dropped. Any other deviation is damage: the log is refused, and the
file stays as it is.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path

from ..errors import ConfigError, DamagedError, SoftsError
from .files import check_private, open_plain, sync_folder, write_all
from .lock import Lock

__all__ = ["Log"]

_HEAD, _CRC = struct.Struct("<II"), struct.Struct("<I")
_BEFORE_BODY = _HEAD.size + _CRC.size
#: Bytes that a disk writes at once, at least; those that it did not write are zeros.
_SECTOR = 512
#: The log wants to be replaced once it has both so many bytes and so many times those after the last replacement.
_COMPACT_BYTES, _COMPACT_TIMES = 256 << 10, 4


class Log:
    """A log that this process has open. Its lock, if it has one, keeps other processes out.

    Args:
        path: The file; it is made if it does not exist.
        kind: Word that tells logs of one purpose from others.
        most_bytes: Largest size that is read.
        what: Name of the file for errors, such as ``state file /var/job``.
        lock: The lock that keeps other processes out; the log closes it.

    Attributes:
        records: Bodies of the records found.
        dropped: Bytes of a last record that a crash cut short; they are gone from the file.

    Raises:
        ConfigError: The file is of another kind or user, or too long.
        DamagedError: The file is damaged before its last record, or its last record was altered.
        SoftsError: The operating system refused an operation.
    """

    def __init__(
        self, path: Path, kind: str, *, most_bytes: int, what: str, lock: Lock | None = None
    ) -> None:
        self._path, self._what = path, what
        self._magic = f"softs-fast log 1 {kind}\n".encode()
        with ExitStack() as opened:
            if lock is not None:
                opened.callback(lock.close)
            try:
                self._fd = open_plain(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, what)
                opened.callback(lambda: os.close(self._fd))
                check_private(self._fd, what)
                size = os.fstat(self._fd).st_size
                if size > most_bytes:
                    raise ConfigError(
                        f"{what} has {size:,} bytes, expected at most {most_bytes:,}; use another file"
                    )
                self.records, used = _scan(os.pread(self._fd, size, 0), self._magic, what)
                self.dropped = size - used
                if self.dropped:
                    os.ftruncate(self._fd, used)
                if not used:
                    write_all(self._fd, self._magic)
                    os.fsync(self._fd)
                    sync_folder(path.parent)
            except OSError as error:
                raise self._failed(error) from None
            self._opened = opened.pop_all()
        self._size = self._compact_size = max(used, len(self._magic))

    @property
    def needs_compacting(self) -> bool:
        """Whether the log has grown so much that `replace` is due."""
        return self._size > _COMPACT_BYTES and self._size > _COMPACT_TIMES * self._compact_size

    def append(self, body: bytes) -> None:
        """Append a record and return when it is on disk.

        Raises:
            SoftsError: The record cannot be written; the log is as before.
        """
        data = _framed(body)
        try:
            if os.fstat(self._fd).st_size != self._size:
                os.ftruncate(self._fd, self._size)  # after a failure that could not be undone at once
            try:
                write_all(self._fd, data)
                os.fsync(self._fd)
            except BaseException:
                with suppress(OSError):
                    os.ftruncate(self._fd, self._size)
                raise
        except OSError as error:
            raise self._failed(error) from None
        self._size += len(data)

    def replace(self, bodies: Sequence[bytes]) -> None:
        """Replace all records at once; a crash leaves the old ones or the new ones.

        Raises:
            SoftsError: The new file cannot be written; the old records stay.
        """
        new = self._path.with_name(self._path.name + ".new")
        data = self._magic + b"".join(map(_framed, bodies))
        try:
            new.unlink(missing_ok=True)
            fd = open_plain(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, self._what)
            try:
                write_all(fd, data)
                os.fsync(fd)
                os.rename(new, self._path)
            except BaseException:
                os.close(fd)
                raise
            os.close(self._fd)
            self._fd, self._size, self._compact_size = fd, len(data), len(data)
            sync_folder(self._path.parent)
        except OSError as error:
            raise self._failed(error) from None

    def close(self) -> None:
        """Close the log, and release its lock; idempotent."""
        self._opened.close()

    def _failed(self, error: OSError) -> SoftsError:
        return SoftsError(f"{self._what}: {error.strerror or error}")


def _framed(body: bytes) -> bytes:
    head = _HEAD.pack(len(body), zlib.crc32(body))
    return head + _CRC.pack(_of_head(head)) + body


def _of_head(head: bytes) -> int:
    return zlib.crc32(head, 1)  # that of zeros is not zero


def _scan(data: bytes, magic: bytes, what: str) -> tuple[list[bytes], int]:
    """Return the records, and the bytes that they and the first line take; behind these a crash has cut."""
    if magic.startswith(data):
        return [], len(data) if data == magic else 0
    if not data.startswith(magic):
        first = data[: len(magic)].partition(b"\n")[0].decode(errors="backslashreplace")
        raise ConfigError(
            f"{what} begins with {first!r}, expected {magic.decode().strip()!r}; use another file"
        )
    records: list[bytes] = []
    start = len(magic)
    while start < len(data):
        end = _end_of(data, start)
        if (
            end is not None
            and end <= len(data)
            and zlib.crc32(body := data[start + _BEFORE_BODY : end]) == (_HEAD.unpack_from(data, start)[1])
        ):
            records.append(body)
            start = end
        elif _is_cut(data, start, end):
            break
        else:
            raise DamagedError(
                f"{what} is damaged at byte {start} of {len(data)}; restore a copy or use another file"
            )
    return records, start


def _end_of(data: bytes, start: int) -> int | None:
    """Return where the record at a byte ends, or None if its head is incomplete or was changed."""
    if start + _BEFORE_BODY > len(data):
        return None
    if _CRC.unpack_from(data, start + _HEAD.size)[0] != _of_head(data[start : start + _HEAD.size]):
        return None
    return start + _BEFORE_BODY + int(_HEAD.unpack_from(data, start)[0])


def _is_cut(data: bytes, start: int, end: int | None) -> bool:
    """Return whether a crash can have left what begins at a byte: a record that is not whole, and the last one."""
    if end is not None:
        return end > len(data) or (end == len(data) and _lacks_sector(data, start, end))
    head_end = start + _BEFORE_BODY
    if head_end > len(data) or not any(data[start:]):
        return True
    # A sector with the head did not arrive, and others of the record did.
    sectors_end = min(len(data), -(-head_end // _SECTOR) * _SECTOR)
    return _lacks_sector(data, start, sectors_end) and not any(
        _is_record(data, at) for at in range(head_end, len(data))
    )


def _lacks_sector(data: bytes, start: int, end: int) -> bool:
    """Return whether the part of any sector in a range is zeros."""
    cuts = [start, *range((start // _SECTOR + 1) * _SECTOR, end, _SECTOR), end]
    return any(not any(data[first:last]) for first, last in pairwise(cuts))


def _is_record(data: bytes, start: int) -> bool:
    end = _end_of(data, start)
    return (
        end is not None and zlib.crc32(data[start + _BEFORE_BODY : end]) == _HEAD.unpack_from(data, start)[1]
    )
