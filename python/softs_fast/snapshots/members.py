"""Which processes have windows: notes in a folder or in a store of torch.distributed, without any collective call."""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Set
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from softs_fast.process import Closing

from ..collectives import MAX_MESSAGE_BYTES, FolderStore, TorchStore, in_thread
from ..errors import ConfigError, SegmentError, SoftsError
from ..identity import Process, host_id, this_process
from .window import RemoteWindow, Window

if TYPE_CHECKING:
    from torch.distributed import Store

__all__ = ["MAX_MEMBERS", "Member", "Members"]

#: Notes that are looked at; a place has one for each window that was ever published there, less those removed.
MAX_MEMBERS = 10_000

# File systems note times in ticks of 10 ms at most.
_TICK_NS = 100_000_000

# Name of the threads in which a store is asked.
_THREAD = "softs-members"

# How long `close` waits for a store that is asked in a thread.
_CLOSE_S = 1.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Member:
    """Another process that has a window.

    Attributes:
        rank: the number that it gave.
        window: its window, opened.
    """

    rank: int
    window: RemoteWindow


class Members(Closing):
    """The windows of others, found by notes at a common place. Joining and leaving is no collective call.

    Each process leaves a note with the address of its window, and looks at the notes of the others. Windows of
    processes that have ended, or have closed theirs, are left out.

    Args:
        place: Folder of this host, also as "file://PATH", or a `torch.distributed.Store`.
        window: Window of this process.
        rank: Number of this process, for the others.
        name: Name that distinguishes groups at the same place; letters, digits, "_", "." and "-".
        beside: Whether a store is asked in a thread, so that no call waits for it: the process that serves it may be
            stopped, and a file store may be locked by one that is. `refresh` returns what the last answer has brought
            then, and asks again. A folder is always read at once.

    Raises:
        ConfigError: the name or the place is none of these, the folder belongs to another user, or the window is
            closed.

    Attributes:
        refused: Reasons why windows could not be opened, by the name of the note: those of processes that have ended,
            for example.
        unseen: Reasons why windows of ranks that may be alive cannot be opened here, by rank: those of other hosts
            and of other pid namespaces. Each is logged once.

    Example:
        >>> import tempfile, torch
        >>> from softs_fast.snapshots import SnapshotLayout, Window
        >>> layout = SnapshotLayout.of({"w": torch.zeros(3)})
        >>> with tempfile.TemporaryDirectory() as folder, Window(layout) as mine, Window(layout) as other:
        ...     with Members(folder, mine, rank=0) as members, Members(folder, other, rank=1):
        ...         [member.rank for member in members.refresh()]
        [1]
    """

    def __init__(
        self,
        place: Store | str | Path,
        window: Window,
        *,
        rank: int,
        name: str = "ranks",
        beside: bool = False,
    ) -> None:
        if not re.fullmatch(r"[\w.-]+", name):
            raise ConfigError(f'group name is "{name}"; it may have letters, digits, "_", "." and "-"')
        self._own = str(window.address["id"])
        self._opened: dict[str, Member] = {}
        self.refused: dict[str, str] = {}
        self.unseen: dict[int, str] = {}
        self._notes = _notes(place, f"softs.{name}.window")
        self._note = json.dumps({"rank": rank, "window": window.address, "host": host_id()}).encode()
        self._key: str | None = None
        # The question to the store that has no answer yet, or one that was not looked at.
        self._asked: Future[list[tuple[str, bytes]]] | None = None
        self._is_beside = beside and isinstance(self._notes, _StoreNotes)
        if self._is_beside:
            self._asked = in_thread(partial(self._look, set()), _THREAD)
        else:
            self._key = self._notes.add(self._note)

    def refresh(self) -> list[Member]:
        """Look at the notes; return the members that are alive now, by rank, without this process.

        Each window is opened once, and closed when its process is found to have ended. If the place cannot be reached,
        the members that were known remain.
        """
        for key, member in list(self._opened.items()):
            if not member.window.is_alive():
                self._opened.pop(key).window.close()
                self.refused[key] = "it has ended"
        look = partial(self._look, self._opened.keys() | self.refused.keys())
        try:
            for key, note in self._answer(look) if self._is_beside else look():
                if key not in self._opened:
                    self._open(key, note)
        except (OSError, RuntimeError) as error:  # of the folder, of torch's store
            _log.warning("cannot look for members: %s", error)
        return sorted(
            self._opened.values(), key=lambda member: (member.rank, str(member.window.address["id"]))
        )

    def close(self) -> None:
        """Remove this process's note, and close the windows of the others; a second call does nothing.

        A store that is asked in a thread is waited for a second: without a window the note is of no use.
        """
        for member in self._opened.values():
            member.window.close()
        self._opened.clear()
        key, self._key = self._key, None
        if key is not None:
            remove = partial(self._notes.remove, key)
            try:
                in_thread(remove, _THREAD).result(_CLOSE_S) if self._is_beside else remove()
            except (OSError, RuntimeError) as error:
                _log.warning("cannot remove the note of this member: %r", error)

    def _look(self, known: Set[str]) -> list[tuple[str, bytes]]:
        if self._key is None:
            self._key = self._notes.add(self._note)
        return list(self._notes.others({*known, self._key}))

    def _answer(self, look: Callable[[], list[tuple[str, bytes]]]) -> list[tuple[str, bytes]]:
        """Return what the store has answered, and ask again; nothing while it is silent."""
        asked = self._asked
        if asked is None or not asked.done():
            return []
        self._asked = in_thread(look, _THREAD)
        return asked.result()

    def _open(self, key: str, note: bytes) -> None:
        try:
            said = json.loads(note)
            rank, address = said["rank"], said["window"]
            if type(rank) is not int or not isinstance(address, dict):
                raise ValueError("a value is of another type")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            self.refused[key] = f"the note is malformed: {error!r}"
            return
        if address.get("id") == self._own:
            return
        try:
            self._opened[key] = Member(rank, RemoteWindow.open(address))
        except SoftsError as error:
            self.refused[key] = str(error)
            if isinstance(error, SegmentError) and _may_be_alive(said.get("host"), address):
                _log.warning("rank %d is left out, as its memory cannot be opened here: %s", rank, error)
                self.unseen[rank] = str(error)
        else:
            self.unseen.pop(rank, None)


def _may_be_alive(host: object, address: Mapping[str, int]) -> bool:
    """Return whether the owner of a window may be alive, as far as that can be told here."""
    if not host or host != host_id():
        return True
    return Process(address["pid"], address["started"], this_process().namespace).is_alive()


class _Notes(Protocol):
    """Notes that all processes can read."""

    def add(self, note: bytes) -> str:
        """Leave a note; return its key."""

    def others(self, known: Set[str]) -> Iterator[tuple[str, bytes]]:
        """Yield keys and texts of notes with keys that are not known."""

    def remove(self, key: str) -> None:
        """Remove a note."""


def _notes(place: Store | str | Path, prefix: str) -> _Notes:
    if isinstance(place, str | Path):
        return _FolderNotes(Path(str(place).removeprefix("file://")), prefix)
    import torch.distributed as dist

    if dist.is_available() and isinstance(place, dist.Store):
        return _StoreNotes(place, prefix)
    raise ConfigError(
        f"members meet at a {type(place).__name__}; give a folder or a Store of torch.distributed"
    )


class _FolderNotes:
    """A file for each note; those of processes that have ended are removed."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self._folder = folder
        self._prefix = prefix
        self._store = FolderStore(folder)
        # When the folder had changed last, once no other change can have the same time.
        self._listed_ns: int | None = None

    def add(self, note: bytes) -> str:
        key = f"{self._prefix}.{secrets.token_hex(8)}"
        self._store.set(key, note)
        return key

    def others(self, known: Set[str]) -> Iterator[tuple[str, bytes]]:
        try:
            changed_ns = self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            return
        if changed_ns == self._listed_ns:
            return
        is_past = time.time_ns() - changed_ns > _TICK_NS
        for path in sorted(self._folder.glob(f"{self._prefix}.*"))[:MAX_MEMBERS]:
            note = self._store.get(path.name)
            if note is None:
                self._store.delete(path.name)
            elif path.name not in known:
                yield path.name, note
        self._listed_ns = changed_ns if is_past else None

    def remove(self, key: str) -> None:
        self._store.delete(key)


class _StoreNotes:
    """Numbered values. A note that is removed becomes empty, so that its number is not looked at again."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._values = TorchStore(store)
        self._prefix = prefix
        self._ended: set[str] = set()

    def add(self, note: bytes) -> str:
        key = f"{self._prefix}.{self._store.add(f'{self._prefix}.count', 1)}"
        self._values.set(key, note)
        return key

    def others(self, known: Set[str]) -> Iterator[tuple[str, bytes]]:
        count = min(self._store.add(f"{self._prefix}.count", 0), MAX_MEMBERS)
        for number in range(1, count + 1):
            key = f"{self._prefix}.{number}"
            if key in known or key in self._ended:
                continue
            # A number without a note is one that its process is about to write.
            note = self._values.get(key)
            if note == b"":
                self._ended.add(key)
            elif note is not None and len(note) <= MAX_MESSAGE_BYTES:
                yield key, note

    def remove(self, key: str) -> None:
        self._values.set(key, b"")
