"""Files with certificates or tokens: read privately, read again when they change, kept as they were when they break."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from ..durable import read_private
from ..errors import ConfigError

__all__ = ["Kept", "read_public", "read_secret"]

#: Of a file with a key or tokens.
_MOST_BYTES = 1 << 20

T = TypeVar("T")


class Kept(Generic[T]):
    """What files hold now; what they held before if they have become invalid.

    Args:
        paths: The files.
        read: Function that reads the files; it raises ConfigError if they cannot be used.
        logger: Logger that is told what was read again, and what could not be.

    Raises:
        ConfigError: The files cannot be used.
    """

    def __init__(self, paths: Sequence[Path], read: Callable[[], T], logger: logging.Logger) -> None:
        self._paths, self._read, self._logger = paths, read, logger
        self._lock = threading.Lock()
        self._version = self._refused = self._present_version()
        self._value = read()

    def now(self) -> T:
        """Return what the files hold, by a look at them."""
        with self._lock:
            version = self._present_version()
            if version != self._version:
                names = ", ".join(map(str, self._paths))
                try:
                    self._value = self._read()
                except ConfigError as error:
                    # The next look tries again: too many open files, say, is over some time.
                    if version != self._refused:
                        self._logger.warning("%s stays in force as it was: %s", names, error)
                    self._refused = version
                else:
                    self._version = self._refused = version
                    self._logger.info("read %s again", names)
            return self._value

    def _present_version(self) -> list[tuple[int, int, int] | None]:
        return [_version(path) for path in self._paths]


def read_secret(path: Path) -> bytes:
    """Read a file of this user or root that others cannot read; of root the group may, as of a secret that is mounted.

    Raises:
        ConfigError: It cannot be read, is too long, or others can read or replace it.
    """
    # Mounted secrets are links. The file at the end of them is the one that is checked.
    real = Path(os.path.realpath(path))
    try:
        return read_private(real, most_bytes=_MOST_BYTES, what=str(path), group=True)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


def read_public(path: Path) -> bytes:
    """Read a file of certificates.

    Raises:
        ConfigError: It cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


def _version(path: Path) -> tuple[int, int, int] | None:
    """Return what changes with a file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
