"""Where a recording is read from: a folder of this host, or one of any store that fsspec knows."""

from __future__ import annotations

import logging
import os
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from ..errors import ConfigError, DamagedError

__all__ = ["Folder"]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_PLAIN = ("http://", "ftp://")
_MOST_BYTES = 1 << 30
_CHUNK_BYTES = 8 << 20
#: Pauses before another attempt at a store, seconds.
_PAUSES_S = (0.2, 1.0, 5.0)


class Folder:
    """A folder that is read.

    Args:
        where: Path, or URL of fsspec such as ``s3://bucket/epoch``.
        inner: Folders inside it, each with a slash at its end.

    Raises:
        ConfigError: The URL is of a protocol that neither encrypts nor authenticates.
    """

    def __init__(self, where: str | os.PathLike[str], inner: str = "") -> None:
        where = os.fspath(where)
        self.is_remote = "://" in where
        if plain := next((one for one in _PLAIN if one in where), None):
            raise ConfigError(
                f"{where}: what comes by {plain} can be read and changed on the way; use https://, or copy the folder first"
            )
        self._where = where if self.is_remote else str(Path(where))
        self._inner = inner

    def __str__(self) -> str:
        return self.path("").rstrip("/")

    def __truediv__(self, name: str) -> Folder:
        """Return a folder inside this one."""
        return Folder(self._where, f"{self._inner}{name}/")

    def path(self, name: str) -> str:
        """Return the path or the URL of a file."""
        return f"{self._where.rstrip('/')}/{self._inner}{name}"

    def sizes(self) -> dict[str, int | None]:
        """Return the length in bytes of each file by its name: None if the store does not tell it.

        A folder that does not exist has no files.

        Raises:
            ConfigError: as for `open`.
            OSError: The folder cannot be listed.
        """
        try:
            return self._retried("", self._remote_sizes) if self.is_remote else self._local_sizes()
        except (FileNotFoundError, NotADirectoryError):
            return {}

    def read(self, name: str, n_bytes: int | None = None) -> bytes:
        """Return the content of a file.

        Args:
            name: Name of the file.
            n_bytes: As for `open`.

        Raises:
            ConfigError, DamagedError, OSError: as for `open`.
        """
        with open(self.open(name, n_bytes), "rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise DamagedError(self._too_long(name, _MOST_BYTES))
        return data

    def open(self, name: str, n_bytes: int | None = None) -> int:
        """Open a file for reading.

        Args:
            name: Name of the file.
            n_bytes: Length of the file if it is known; a longer or shorter one of a store is refused.

        Returns:
            A descriptor. A file of a store is copied to this host; the copy has no name, and is gone once it is closed.

        Raises:
            ConfigError: fsspec does not know the store, or lacks a package for it.
            DamagedError: This is not a plain file, or it is too long.
            OSError: The file cannot be read; of a store, after some attempts.
        """
        if self.is_remote:
            return self._retried(name, lambda: self._fetched(name, n_bytes))
        # A pipe would wait for its other end.
        descriptor = os.open(self.path(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            os.close(descriptor)
            raise DamagedError(
                f"{self.path(name)} must be a plain file, got {stat.filemode(mode)}; restore a copy"
            )
        return descriptor

    def _local_sizes(self) -> dict[str, int | None]:
        found: dict[str, int | None] = {}
        with os.scandir(self.path("")) as entries:
            for one in entries:
                # A writer may rename and remove its files meanwhile.
                with suppress(FileNotFoundError):
                    found[one.name] = one.stat().st_size
        return found

    def _remote_sizes(self) -> dict[str, int | None]:
        store, path = self._store()
        store.invalidate_cache(path)
        return {
            one["name"].rstrip("/").rpartition("/")[2]: one.get("size")
            for one in store.ls(path.rstrip("/"), detail=True)
        }

    def _fetched(self, name: str, n_bytes: int | None) -> int:
        """Copy a file of the store, and return the descriptor of the copy."""
        store, path = self._store()
        n, most = 0, _MOST_BYTES if n_bytes is None else n_bytes
        with store.open(path + name, "rb") as source, tempfile.TemporaryFile(prefix="softs-fast-") as copy:
            while data := source.read(_CHUNK_BYTES):
                n += len(data)
                if n > most:
                    raise DamagedError(self._too_long(name, most))
                copy.write(data)
            if n_bytes is not None and n < n_bytes:
                raise OSError(f"the store ended after {n:,} of {n_bytes:,} bytes")
            copy.seek(0)
            return os.dup(copy.fileno())

    def _store(self) -> tuple[Any, str]:
        """Return the store, which is another one in a fork, and the path of this folder in it, with a slash at its end."""
        try:
            from fsspec.core import url_to_fs

            store, path = url_to_fs(self._where)
        except ImportError as error:
            raise ConfigError(
                f"{self._where} needs a package that is not installed: {error}; pip install 'softs-fast[record]', and the package of "
                "fsspec for this store, such as s3fs"
            ) from None
        except ValueError as error:
            raise ConfigError(
                f"invalid URL {self._where!r}: {error}; give a folder or a URL of fsspec"
            ) from None
        return store, f"{path.rstrip('/')}/{self._inner}"

    def _retried(self, name: str, call: Callable[[], _T]) -> _T:
        """Call an operation of the store, which is repeated some times if it fails."""
        for pause_s in (*_PAUSES_S, None):
            try:
                return call()
            except (ConfigError, FileNotFoundError, NotADirectoryError, PermissionError):
                raise
            # Stores raise errors of the libraries that they use.
            except Exception as error:
                if pause_s is None:
                    n = len(_PAUSES_S) + 1
                    raise OSError(
                        f"cannot read {self.path(name)} in {n} attempts: {error}; check the store and its credentials"
                    ) from error
                logger.warning("cannot read %s: %s; retrying in %g s", self.path(name), error, pause_s)
            time.sleep(pause_s)
        raise AssertionError("the last attempt returns or raises")

    def _too_long(self, name: str, most: int) -> str:
        return f"{self.path(name)} is too long: expected at most {most:,} bytes; restore a copy"
