"""The state file of a coordinator: what it must know again after a restart.

A line that names the format, then records: length, CRC-32 of the rest, and a Record of coordinator.proto. A record is
on disk before anything that follows from it is sent.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

from ...errors import ConfigError, SoftsError, WireError
from ..job.events import Booted, Record
from ..wire.codec import decode_record, encode_record
from ..wire.limits import MAX_TABLE_BYTES

__all__ = ["StateFile"]

_MAGIC = b"softs-fast coordinator 1\n"
_HEAD = struct.Struct("<II")
#: It is written again, shorter, when it has both so many bytes, and so many times those that it had then.
_COMPACT_BYTES, _COMPACT_TIMES = 256 << 10, 4
#: No file of ours is longer.
_MAX_BYTES = _COMPACT_TIMES * (4 * MAX_TABLE_BYTES)


class StateFile:
    """A state file, locked for this process.

    Args:
        path: of the file; it is made if there is none.
        job: the name of the job.

    Attributes:
        records: what was in it.
        dropped: bytes at the end of it that were no whole record, because the coordinator before was cut short.

    Raises:
        ConfigError: another coordinator uses it, it is of another job or of another user, or it is damaged.
        SoftsError: the operating system refused it.
    """

    def __init__(self, path: Path, job: str) -> None:
        self._path = path
        self._fd = _open_locked(path)
        try:
            self.records, used, size = _load(self._fd, path)
            self.dropped = size - used
            booted = next((record for record in self.records if isinstance(record, Booted)), None)
            if booted is not None and booted.job != job:
                raise ConfigError(
                    f'state file {path} is of job "{booted.job}"; this is the coordinator of "{job}", which needs a file '
                    "of its own"
                )
            os.ftruncate(self._fd, used)
            if used == 0:
                _write_all(self._fd, _MAGIC)
                self._sync_folder()
        except OSError as error:
            os.close(self._fd)
            raise _failed(path, error) from None
        except BaseException:
            os.close(self._fd)
            raise
        self._size = self._compact_size = max(used, len(_MAGIC))

    @property
    def needs_compacting(self) -> bool:
        """Whether `compact` is due."""
        return self._size > _COMPACT_BYTES and self._size > _COMPACT_TIMES * self._compact_size

    def append(self, record: Record) -> None:
        """Write a record durably.

        Raises:
            SoftsError: it cannot be written.
        """
        data = _framed(record)
        try:
            _write_all(self._fd, data)
            os.fsync(self._fd)
        except OSError as error:
            raise _failed(self._path, error) from None
        self._size += len(data)

    def compact(self, records: Sequence[Record]) -> None:
        """Replace the contents, at once or not at all.

        Raises:
            SoftsError: the new file cannot be written.
        """
        new = self._path.with_name(self._path.name + ".new")
        data = _MAGIC + b"".join(map(_framed, records))
        try:
            new.unlink(missing_ok=True)
            fd = os.open(
                new, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _write_all(fd, data)
                os.fsync(fd)
                os.rename(new, self._path)
            except BaseException:
                os.close(fd)
                raise
            os.close(self._fd)
            self._fd = fd
            self._sync_folder()
        except OSError as error:
            raise _failed(self._path, error) from None
        self._size = self._compact_size = len(data)

    def close(self) -> None:
        """Release the file."""
        os.close(self._fd)

    def _sync_folder(self) -> None:
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _open_locked(path: Path) -> int:
    """Open a file and lock it; while that is done, a coordinator may put another file in its place."""
    while True:
        try:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            fd = os.open(path, flags, 0o600)
        except OSError as error:
            raise _failed(path, error) from None
        try:
            _check_owner(path, fd)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found, named = os.fstat(fd), os.stat(path, follow_symlinks=False)
            if (found.st_dev, found.st_ino) == (named.st_dev, named.st_ino):
                return fd
        except BlockingIOError:
            os.close(fd)
            raise ConfigError(
                f"state file {path} is in use by another coordinator{_holder(path)}; end it first, or use another file"
            ) from None
        except FileNotFoundError:
            pass
        except OSError as error:
            os.close(fd)
            raise _failed(path, error) from None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _check_owner(path: Path, fd: int) -> None:
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError(
            f"state file {path} is no plain file of this user with mode 0600 (mode {stat.filemode(found.st_mode)}, user "
            f"{found.st_uid}); use another file, or chmod 600 {path}"
        )


def _holder(path: Path) -> str:
    """Name the process that has a file locked, where the system tells."""
    try:
        inode = os.stat(path).st_ino
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5].endswith(f":{inode}"):
                return f", process {fields[4]}"
    except (OSError, IndexError):
        pass
    return ""


def _load(fd: int, path: Path) -> tuple[list[Record], int, int]:
    """Return the records of a file, the bytes that they take, and all its bytes."""
    size = os.fstat(fd).st_size
    if size > _MAX_BYTES:
        raise ConfigError(
            f"state file {path} has {size} bytes; one of a coordinator has {_MAX_BYTES} at most"
        )
    data = os.pread(fd, size, 0)
    if _MAGIC.startswith(data):
        return [], 0 if len(data) < len(_MAGIC) else len(_MAGIC), len(data)
    if not data.startswith(_MAGIC):
        raise ConfigError(f"{path} is no state file of a coordinator; use another file")
    records: list[Record] = []
    start = len(_MAGIC)
    while start + _HEAD.size <= len(data):
        length, crc = _HEAD.unpack_from(data, start)
        end = start + _HEAD.size + length
        if end > len(data):
            break
        body = data[start + _HEAD.size : end]
        if zlib.crc32(body) != crc:
            if end == len(data):
                break
            raise ConfigError(
                f"state file {path} is damaged at byte {start}; use another file, or a copy of it"
            )
        try:
            records.append(decode_record(body))
        except WireError as error:
            raise ConfigError(f"state file {path}, byte {start}: {error}") from None
        start = end
    return records, start, len(data)


def _framed(record: Record) -> bytes:
    body = encode_record(record)
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _failed(path: Path, error: OSError) -> SoftsError:
    return SoftsError(f"state file {path}: {error.strerror}; without it no epoch can be opened durably")
