"""The folder of a fleet's sockets: it names its owner, and is removed when that has died."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..identity import Process, this_process

__all__ = ["folders", "new_folder", "remove_dead_folders"]

_PREFIX, _OWNER = "softs-", "owner"
#: The longest path of a socket, bytes.
_MAX_PATH = 107
_LONGEST_NAME = f"/{_PREFIX}12345678/control_pub"


def new_folder() -> Path:
    """Return a new folder of this process, and remove those of dead ones.

    It is in the folder for temporary files, or in /tmp if the paths of sockets would be too long there.
    """
    remove_dead_folders()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_place()))
    (folder / _OWNER).write_text(" ".join(map(str, this_process())))
    return folder


def remove_dead_folders() -> None:
    """Remove the folders of fleets that were killed."""
    for folder, owner in folders():
        if not owner.is_alive():
            shutil.rmtree(folder, ignore_errors=True)


def folders() -> Iterator[tuple[Path, Process]]:
    """Yield the folders of this user's fleets, and the process of each."""
    for owner in sorted(Path(_place()).glob(f"{_PREFIX}*/{_OWNER}")):
        # Another user's, one that is no owner, or one that another process removes.
        with contextlib.suppress(OSError, ValueError):
            pid, start, namespace = map(int, owner.read_text().split())
            if owner.stat().st_uid == os.getuid():
                yield owner.parent, Process(pid, start, namespace)


def _place() -> str:
    place = tempfile.gettempdir()
    return place if len(os.fsencode(place + _LONGEST_NAME)) <= _MAX_PATH else "/tmp"
