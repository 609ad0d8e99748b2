"""The folder in which a release is built: the same on every machine."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

# nvcc derives names of kernels from the path of their file, and the bill of materials in a wheel names the path of
# each crate. So the same bytes need the same path.
PATH = Path("/tmp/softs-fast-wheels")


@contextlib.contextmanager
def workplace(path: Path = PATH) -> Iterator[Path]:
    """Make the folder, empty and for this process alone; it is removed in the end.

    Raises:
        SystemExit: it belongs to another user, or another process builds there.
    """
    path.mkdir(mode=0o700, exist_ok=True)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(folder).st_uid != os.getuid():
            raise SystemExit(f"{path} belongs to another user; it must be removed before wheels are built")
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"{path} is in use: another process builds wheels; wait for its end") from None
        os.fchmod(folder, 0o700)
        _clear(path)
        try:
            yield path
        finally:
            _clear(path)
            path.rmdir()
    finally:
        os.close(folder)


def _clear(path: Path) -> None:
    for entry in path.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
