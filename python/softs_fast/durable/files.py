"""Files and folders that are whole or absent, and files that only their user may read."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from ..errors import ConfigError

__all__ = [
    "check_private",
    "open_plain",
    "private_folder",
    "publish_folder",
    "read_private",
    "sync_folder",
    "write_all",
    "write_file",
]

#: Files that are synced at a time: a file system and a disk sync several together in the time of one.
_SYNCS = 8


def write_file(path: Path, content: bytes | Callable[[BinaryIO], object]) -> None:
    """Replace a file durably: readers, and a crash at any moment, find the old content or the new one.

    Args:
        path: The file; its new mode is 0600.
        content: The bytes, or a function that writes them to the file it is given.

    Raises:
        OSError: The file cannot be written; the old one is untouched.
    """
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    with suppress(FileNotFoundError):
        new.unlink()
    try:
        with open(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w+b") as file:
            if callable(content):
                _call(content, file)
            else:
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        with suppress(OSError):
            new.unlink()
        raise
    sync_folder(path.parent)


def _call(write: Callable[[BinaryIO], object], file: BinaryIO) -> None:
    try:
        write(file)
    except RuntimeError as error:
        # torch.save turns an error of the file into a RuntimeError.
        cause = error.__cause__ or error.__context__
        if isinstance(cause, OSError):
            raise cause from None
        raise


def read_private(path: Path, *, most_bytes: int, what: str, group: bool = False) -> bytes:
    """Read a file that holds secrets; the file that is checked is the file that is read.

    Args:
        path: The file.
        most_bytes: Largest size that is read.
        what: Name of the file for errors, such as ``token file /etc/token``.
        group: Whether its group may read a file of root too, as where secrets are mounted.

    Raises:
        ConfigError: Others can read or write the file, it is no plain file, or it is too long.
        OSError: The file cannot be read; FileNotFoundError if it does not exist.
    """
    descriptor = open_plain(path, os.O_RDONLY, what)
    with open(descriptor, "rb") as file:
        is_mounted = group and os.fstat(descriptor).st_uid == 0
        check_private(descriptor, what, allowed=stat.S_IRGRP if is_mounted else 0, root=True)
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ConfigError(f"{what} is too long: expected at most {most_bytes:,} bytes; use another file")
    return data


def private_folder(path: Path, what: str) -> None:
    """Make a folder of mode 0700, or check that it is this user's alone.

    Args:
        path: The folder; its parents are made too.
        what: Name of the folder for errors.

    Raises:
        ConfigError: Other users can enter it.
        OSError: The folder cannot be made.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError(
            f"{what} must be a folder of this user with mode 0700, got {stat.filemode(found.st_mode)} of user "
            f"{found.st_uid}; use another folder, or chmod 700 {path}"
        )


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable.

    Raises:
        OSError: The folder cannot be synced.
    """
    _sync(path, os.O_DIRECTORY)


def publish_folder(partial: Path, final: Path) -> None:
    """Give a complete folder its final name; a crash leaves it under one name or the other, and all of it on disk.

    Args:
        partial: The folder with all its files; on the same file system as `final`.
        final: The new name, which is free.

    Raises:
        OSError: Something cannot be synced, or the name is taken.
    """
    found: list[Path] = []
    for root, _, files in os.walk(partial, topdown=False):
        found += [*(Path(root, name) for name in files), Path(root)]
    with ThreadPoolExecutor(_SYNCS, "softs-sync") as threads:
        for synced in [threads.submit(_sync, path) for path in found]:
            synced.result()
    partial.rename(final)
    sync_folder(final.parent)


def open_plain(path: Path, flags: int, what: str) -> int:
    """Open a plain file without following a link and without waiting for the other end of a pipe.

    Raises:
        ConfigError: The path is a link, a folder, a pipe or a device.
        OSError: The file cannot be opened.
    """
    with suppress(FileNotFoundError):
        _check_plain(os.lstat(path), path, what)
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        _check_plain(os.fstat(descriptor), path, what)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_plain(found: os.stat_result, path: Path, what: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(
            f"{what} must be a plain file, got {stat.filemode(found.st_mode)} at {path}; use another path"
        )


def check_private(descriptor: int, what: str, *, allowed: int = 0, root: bool = False) -> None:
    """Check that only this user can read and write an open file.

    Args:
        descriptor: The open file.
        what: Name of the file for errors.
        allowed: Mode bits that group and others may have.
        root: Whether root may own it.

    Raises:
        ConfigError: Another user owns the file, or can read or write it.
    """
    found = os.fstat(descriptor)
    owners = (os.getuid(), 0) if root else (os.getuid(),)
    if found.st_uid not in owners or found.st_mode & 0o077 & ~allowed:
        raise ConfigError(
            f"{what} must be a file of this user with mode 0600, got {stat.filemode(found.st_mode)} of user "
            f"{found.st_uid}; use another file, or chmod 600 this one"
        )


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes at the position of a descriptor.

    Raises:
        OSError: They cannot be written; some of them may be.
    """
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync(path: Path, flags: int = 0) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
