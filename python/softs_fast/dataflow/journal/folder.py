"""The folder of a journal: its lock, its file, and the folders of saves, of which one counts."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import shutil
import stat
import struct
import threading
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path

from ...errors import ConfigError, FlowError, WireError
from .records import MAGIC, CommonSave, Declared, Record, encode, scan

__all__ = ["JournalFolder", "kept_text"]

_log = logging.getLogger(__name__)

#: The file is written again, with the last save alone, when it is longer.
_COMPACT_BYTES = 1 << 20
#: No file of ours is longer.
_MOST_BYTES = 1 << 28
_YIELDED = struct.Struct("<QI")
#: Files that are synced at a time.
_SYNCS = 8
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW

#: Locks of one process do not exclude each other: journals that are open here, by device and inode.
_open_here: set[tuple[int, int]] = set()


class JournalFolder:
    """A journal that this process has open; no other one can.

    A save is made in a folder with a name of its own, which is renamed when all of it is on disk; then a record names
    it, and with that it counts; then the one before is removed. So whenever the process ends, the last record names a
    save that is whole.

    Args:
        path: the folder; it is made if there is none.
        lines: of the declaration of the flow.

    Attributes:
        path: the folder.
        last: the save that counts; None if there is none.
        yielded: the last step that was yielded, as far as it is known.

    Raises:
        ConfigError: another master uses it, it is of another flow or user, or it is damaged.
        FlowError: the operating system refused it.
    """

    def __init__(self, path: Path, lines: Sequence[str]) -> None:
        self.path = path
        self.last: CommonSave | None = None
        self.yielded = 0
        # Folders of an earlier master may still be written by its workers: names are never used twice.
        self._token = secrets.token_hex(4)
        self._n_begun = 0
        self._removal: threading.Thread | None = None
        self._declared = Declared(tuple(lines))
        with contextlib.ExitStack() as opened:
            try:
                _make_folder(path)
                self._lock_fd, self._identity = _lock(path / "lock")
                opened.callback(self._unlock)
                self._fd = os.open(path / "journal", _FLAGS | os.O_APPEND, 0o600)
                opened.callback(lambda: os.close(self._fd))
                self._yielded_fd = os.open(path / "yielded", _FLAGS, 0o600)
                opened.callback(os.close, self._yielded_fd)
                self._load()
            except OSError as error:
                raise self._failed(error) from None
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Release the folder; idempotent."""
        self._await_removal()
        self._opened.close()

    # --- Saves ---

    def begin(self, step: int) -> Path:
        """Make a folder for the save of a step; returns it.

        Raises:
            FlowError: it cannot be made.
        """
        self._n_begun += 1
        path = self.path / f".save-{step}-{self._token}{self._n_begun}"
        try:
            path.mkdir(mode=0o700)
        except OSError as error:
            raise self._failed(error) from None
        return path

    @staticmethod
    def name_of(partial: Path) -> str:
        """Return the name that the folder of a save gets."""
        return partial.name[1:]

    def commit(self, partial: Path, save: CommonSave) -> None:
        """Have a save count that is whole in its folder.

        Raises:
            FlowError: it cannot be written; the one before counts.
        """
        before = self.last
        self._await_removal()
        try:
            _sync_tree(partial)
            partial.rename(self.path / save.name)
            _sync(self.path)
            self._append(save)
        except (OSError, WireError) as error:
            raise self._failed(error) from None
        self.last = save
        if before is not None:
            self._remove(self.path / before.name)
        if os.fstat(self._fd).st_size > _COMPACT_BYTES:
            self._compact()

    def note_yielded(self, step: int) -> None:
        """A step is yielded. That is not synced: it only says which steps are done again."""
        self.yielded = max(self.yielded, step)
        number = struct.pack("<Q", self.yielded)
        with contextlib.suppress(OSError):
            os.pwrite(self._yielded_fd, _YIELDED.pack(self.yielded, zlib.crc32(number)), 0)

    # --- Inside ---

    def _remove(self, path: Path) -> None:
        """Remove a save that does not count any more, beside what goes on: a file system takes long for large files."""
        removed = path.with_name(f".{path.name}-removed")  # what has the name of a save is whole
        with contextlib.suppress(OSError):
            path.rename(removed)
        self._removal = threading.Thread(
            target=shutil.rmtree,
            args=(removed,),
            kwargs={"ignore_errors": True},
            name="softs-flow-journal",
            daemon=True,
        )
        self._removal.start()

    def _await_removal(self) -> None:
        removal, self._removal = self._removal, None
        if removal is not None:
            removal.join()

    def _load(self) -> None:
        size = os.fstat(self._fd).st_size
        if size > _MOST_BYTES:
            raise ConfigError(
                f"journal {self.path} has {size} bytes; one of a flow has {_MOST_BYTES} at most"
            )
        data = os.pread(self._fd, size, 0)
        try:
            records, used = scan(data)
        except WireError as error:
            raise ConfigError(f"journal {self.path}: {error}; use another folder") from None
        if used < len(data):
            _log.warning(
                "journal %s: its last %d bytes are no whole record; they do not count",
                self.path,
                len(data) - used,
            )
            os.ftruncate(self._fd, used)
        if not used:
            _write(self._fd, MAGIC)
        for record in records:
            if isinstance(record, CommonSave):
                self.last = record
            else:
                self._check_same(record)
        if not records:
            self._append(self._declared)
            _sync(self.path)
        if self.last is not None and not (self.path / self.last.name).is_dir():
            raise ConfigError(
                f"journal {self.path} names {self.last.name}, the save of step {self.last.step}, which is not there; "
                "restore that folder, or use another one"
            )
        kept = self.last.name if self.last is not None else ""
        for found in [*self.path.glob("save-*"), *self.path.glob(".save-*")]:
            if found.name != kept:
                shutil.rmtree(found, ignore_errors=True)
        found_yielded = os.pread(self._yielded_fd, _YIELDED.size, 0)
        if len(found_yielded) == _YIELDED.size:
            number, checksum = _YIELDED.unpack(found_yielded)
            if checksum == zlib.crc32(found_yielded[:8]):
                self.yielded = number

    def _check_same(self, record: Declared) -> None:
        pairs = zip_longest(record.lines, self._declared.lines, fillvalue="nothing")
        for number, (theirs, own) in enumerate(pairs, 1):
            if theirs != own:
                raise ConfigError(
                    f"journal {self.path} is of another flow; line {number} of the declaration is {theirs!r} there and "
                    f"{own!r} here; use another folder, or the flow that it is of"
                )

    def _append(self, record: Record) -> None:
        size = os.fstat(self._fd).st_size
        try:
            _write(self._fd, encode(record))
        except OSError:
            os.ftruncate(self._fd, size)  # a record that was cut short must be the last one
            raise
        os.fsync(self._fd)

    def _compact(self) -> None:
        assert self.last is not None
        new = self.path / ".journal.new"
        try:
            new.unlink(missing_ok=True)
            fd = os.open(new, _FLAGS | os.O_APPEND | os.O_EXCL, 0o600)
            try:
                _write(fd, MAGIC + encode(self._declared) + encode(self.last))
                os.fsync(fd)
                new.rename(self.path / "journal")
            except BaseException:
                os.close(fd)
                raise
        except OSError as error:
            raise self._failed(error) from None
        os.close(self._fd)
        self._fd = fd
        with contextlib.suppress(OSError):
            _sync(self.path)

    def _unlock(self) -> None:
        _open_here.discard(self._identity)
        os.close(self._lock_fd)

    def _failed(self, error: Exception) -> FlowError:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return FlowError(f"journal {self.path}: {why}; {kept_text(self.last)}")


def kept_text(save: CommonSave | None) -> str:
    """Return which save counts, for errors."""
    return f"the save of step {save.step} stays" if save is not None else "there is no save yet"


def _make_folder(path: Path) -> None:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError(
            f"journal {path} is no folder of this user alone (mode {stat.filemode(found.st_mode)}, user {found.st_uid}); "
            f"use another folder, or chmod 700 {path}"
        )


def _lock(path: Path) -> tuple[int, tuple[int, int]]:
    """Lock a file for this process; returns its descriptor and its identity.

    The lock is one of `lockf`: forks of this process, such as workers of a DataLoader, do not hold it when this process
    has been killed, so the next master can have it at once. With `flock` they would.
    """
    with contextlib.suppress(FileNotFoundError):
        # It must not be opened again: closing any descriptor of it ends the lock of this process.
        if _identity(path.stat()) in _open_here:
            raise ConfigError(
                f"journal {path.parent} is in use by another flow of this process; close that one first"
            )
    fd = os.open(path, _FLAGS, 0o600)
    try:
        identity = _identity(os.fstat(fd))
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            number = os.pread(fd, 20, 0).decode(errors="replace").strip()
            raise ConfigError(
                f"journal {path.parent} is in use by another master, process {number or '?'}; end it first, or use "
                "another folder"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    except BaseException:
        os.close(fd)
        raise
    _open_here.add(identity)
    return fd, identity


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _sync_tree(folder: Path) -> None:
    """Make all of a folder private, and sync it."""
    found: list[Path] = []
    for root, _, files in os.walk(folder, topdown=False):
        found += [*(Path(root, name) for name in files), Path(root)]
    # All modes first, then all syncs at once: a file system and a disk do several together in the time of one.
    for path in found:
        mode = 0o700 if path.is_dir() else 0o600
        if stat.S_IMODE(path.stat().st_mode) != mode:
            path.chmod(mode)
    with ThreadPoolExecutor(_SYNCS, "softs-flow-sync") as threads:
        for synced in [threads.submit(_sync, path) for path in found]:
            synced.result()


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
