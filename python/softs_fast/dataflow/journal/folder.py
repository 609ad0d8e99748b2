"""The folder of a journal: its lock, and its saves, of which the newest whole one counts."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import shutil
import stat
import struct
import threading
import zlib
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from ...durable import (
    MANIFEST,
    Lock,
    private_folder,
    publish_folder,
    verify_manifest,
    write_file,
    write_manifest,
)
from ...errors import ConfigError, DamagedError, FlowError, WireError
from .records import CommonSave, decode, encode

__all__ = ["JournalFolder", "kept_text"]

_log = logging.getLogger(__name__)

#: In the folder of a save, beside the manifest.
_RECORD = "record"
#: Saves that are kept: the one that counts, and the one before it, in case a disk loses a part of the first.
_KEPT = 2
_NAME = re.compile(r"save-(\d+)-step-(\d+)-[0-9a-f]+")
_YIELDED = struct.Struct("<QI")
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class JournalFolder:
    """A journal that this process has open; no other one can.

    A save is made in a folder with a name of its own. When all of it is there, a record of the master's knowledge and a
    manifest with the digest of each file are added, all is synced, and the folder is renamed: with that it counts. Then
    the save before the one before is removed. So whenever the process ends, the newest save is whole.

    Args:
        path: Folder; it is made if it does not exist.
        lines: Lines of the declaration of the flow.

    Attributes:
        path: Folder of the journal.
        last: Save that counts; None if the journal has no save.
        yielded: Last step that was yielded, as far as it is known.

    Raises:
        ConfigError: another master uses it, it is of another flow or user, or no save of it is whole.
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
        self._lines = tuple(lines)
        with contextlib.ExitStack() as opened:
            try:
                private_folder(path, f"journal {path}")
                opened.callback(Lock(path / "lock", f"journal {path}").close)
                self._yielded_fd = os.open(path / "yielded", _FLAGS, 0o600)
                opened.callback(os.close, self._yielded_fd)
                self._read_yielded()
                self.choose()
                # What was never finished, or was about to be removed.
                for found in path.glob(".save-*"):
                    shutil.rmtree(found, ignore_errors=True)
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
        number = max((found for found, _ in self._saves()), default=0) + 1
        path = self.path / f".save-{number}-step-{step}-{self._token}{self._n_begun:x}"
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
        self._await_removal()
        try:
            write_file(partial / _RECORD, encode(self._lines, save))
            # Workers have hashed the weights, each its own, and the master hashes the rest.
            write_manifest(partial, [found.parent for found in partial.glob(f"*/**/{MANIFEST}")])
            _make_private(partial)
            publish_folder(partial, self.path / save.name)
        except (OSError, WireError) as error:
            raise self._failed(error) from None
        self.last = save
        self._remove([path for _, path in self._saves()[_KEPT:]])

    def choose(self) -> None:
        """Have the newest save that is whole count; damaged ones that are newer are set aside, with a warning.

        Raises:
            ConfigError: saves are there and none is whole, one has no manifest, all have gone, or it is of another flow.
            OSError: a file cannot be read.
        """
        damaged: list[tuple[Path, DamagedError]] = []
        self.last = None
        saves = [path for _, path in self._saves()]
        for path in saves:
            try:
                self.last = self._verified(path)
                break
            except DamagedError as error:
                damaged.append((path, error))
        if self.last is None and damaged:
            said = "; ".join(str(one) for _, one in damaged)
            raise ConfigError(f"journal {self.path} has no save that is whole: {said}")
        if self.last is None and self.yielded:
            raise ConfigError(
                f"journal {self.path} has no save, although step {self.yielded} was yielded; restore its saves, or use "
                "another folder to begin anew"
            )
        for path, damage in damaged:
            assert self.last is not None
            aside = path.with_name(f"damaged-{path.name}")
            path.rename(aside)
            _log.warning(
                "journal %s: %s. The flow goes back to %s, the save of step %d; what it did in later steps is not in "
                "its weights, and is done again. The damaged save is now %s; nothing of it was removed",
                *(self.path, damage, self.last.name, self.last.step, aside.name),
            )

    def note_yielded(self, step: int) -> None:
        """A step is yielded. That is not synced: it only says which steps are done again."""
        self.yielded = max(self.yielded, step)
        number = struct.pack("<Q", self.yielded)
        with contextlib.suppress(OSError):
            os.pwrite(self._yielded_fd, _YIELDED.pack(self.yielded, zlib.crc32(number)), 0)

    # --- Inside ---

    def _saves(self) -> list[tuple[int, Path]]:
        """Return the finished saves with their numbers, the newest first.

        Raises:
            ConfigError: one has another name, so it is of another version.
        """
        found = []
        for path in self.path.glob("save-*"):
            match = _NAME.fullmatch(path.name)
            if match is None:
                raise ConfigError(
                    f"journal {self.path} has {path.name}, expected a name such as save-3-step-20-1f; it is of another "
                    "version of softs-fast: use that version, or another folder"
                )
            found.append((int(match[1]), path))
        return sorted(found, reverse=True)

    def _verified(self, path: Path) -> CommonSave:
        what = f"save {path}"
        if not (path / MANIFEST).exists():
            raise ConfigError(
                f"journal {self.path} has {what}, which is finished and has no {MANIFEST}; restore {path / MANIFEST}, or "
                "move that save away to go on from an older one"
            )
        names = verify_manifest(path, what)
        for name in sorted(names):
            if name.endswith(f"/{MANIFEST}"):
                verify_manifest((path / name).parent, f"{name.removesuffix(f'/{MANIFEST}')} of {what}")
        if _RECORD not in names:
            raise ConfigError(f"{what} has no {_RECORD}; it is of another version of softs-fast")
        try:
            lines, save = decode((path / _RECORD).read_bytes())
        except WireError as error:
            raise ConfigError(f"{path / _RECORD}: {error}") from None
        self._check_same(lines)
        return save

    def _remove(self, paths: Sequence[Path]) -> None:
        """Remove saves that do not count any more, beside what goes on: a file system takes long for large files."""
        removed = [
            path.with_name(f".{path.name}-removed") for path in paths
        ]  # what has the name of a save is whole
        for path, new in zip(paths, removed, strict=True):
            with contextlib.suppress(OSError):
                path.rename(new)

        def remove() -> None:
            for path in removed:
                shutil.rmtree(path, ignore_errors=True)

        self._removal = threading.Thread(target=remove, name="softs-flow-journal", daemon=True)
        self._removal.start()

    def _await_removal(self) -> None:
        removal, self._removal = self._removal, None
        if removal is not None:
            removal.join()

    def _read_yielded(self) -> None:
        found = os.pread(self._yielded_fd, _YIELDED.size, 0)
        if len(found) == _YIELDED.size:
            number, checksum = _YIELDED.unpack(found)
            if checksum == zlib.crc32(found[:8]):
                self.yielded = number

    def _check_same(self, lines: Sequence[str]) -> None:
        for number, (theirs, own) in enumerate(zip_longest(lines, self._lines, fillvalue="nothing"), 1):
            if theirs != own:
                raise ConfigError(
                    f"journal {self.path} is of another flow; line {number} of the declaration is {theirs!r} there and "
                    f"{own!r} here; use another folder, or the flow that it is of"
                )

    def _failed(self, error: Exception) -> FlowError:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return FlowError(f"journal {self.path}: {why}; {kept_text(self.last)}")


def kept_text(save: CommonSave | None) -> str:
    """Return which save counts, for errors."""
    return f"the save of step {save.step} stays" if save is not None else "there is no save yet"


def _make_private(folder: Path) -> None:
    """Have only this user read what others have written into a folder."""
    for path in folder.rglob("*"):
        mode = 0o700 if path.is_dir() else 0o600
        if stat.S_IMODE(path.stat().st_mode) != mode:
            path.chmod(mode)
