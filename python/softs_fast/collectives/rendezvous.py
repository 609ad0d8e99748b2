"""How the ranks of a group find each other: everybody says something, everybody hears what all say.

What is exchanged is small, is never unpickled, and proves nothing: that two ranks are on one host, for one, is proved later by
reading a random number in the other's memory.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from softs_fast import _kernels
from softs_fast.errors import ConfigError, PeerLost

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Store

# What one rank may say at once.
MAX_SAID_BYTES = 4096

_LOOK_EVERY_S = 0.002


@runtime_checkable
class Rendezvous(Protocol):
    """An all-gather of a few bytes, over anything."""

    def exchange(self, said: bytes, timeout_s: float) -> list[bytes]:
        """Return what every rank says, by rank.

        Raises:
            PeerLost: somebody did not come in time; the text names the ranks.
            ConfigError: what was said is too long.
        """

    def close(self) -> None:
        """Remove what it left at the meeting place."""


class _Board(Protocol):
    """A place where anybody can pin up a note under a name."""

    def post(self, key: str, note: bytes) -> None: ...

    def read(self, key: str) -> bytes | None: ...

    def erase(self, key: str) -> None: ...


class BoardRendezvous:
    """A rendezvous at a board. What an earlier meeting at the same place left is not taken for this one's.

    Args:
        board: where notes are pinned up.
        rank: this process's number.
        size: number of ranks.
        name: tells groups apart that meet at the same place.

    Raises:
        ConfigError: the name has other characters than letters, digits, "_", "." and "-".
    """

    def __init__(self, board: _Board, rank: int, size: int, name: str) -> None:
        if not re.fullmatch(r"[\w.-]+", name):
            raise ConfigError(f'group name is "{name}"; it may have letters, digits, "_", "." and "-"')
        self._board = board
        self._rank = rank
        self._size = size
        self._name = name
        self._session = ""
        self._round = 0
        self._own: list[str] = []

    def exchange(self, said: bytes, timeout_s: float) -> list[bytes]:
        """Return what every rank says, by rank; see `Rendezvous.exchange`."""
        if len(said) > MAX_SAID_BYTES:
            raise ConfigError(f"a rank says {len(said)} bytes at once; at most {MAX_SAID_BYTES} are possible")
        deadline = time.monotonic() + timeout_s
        if not self._session:
            # Later rounds are named after random numbers of all ranks: no note of another meeting has such a name.
            hello = self._gather("hello", secrets.token_bytes(16), deadline)
            self._session = hashlib.blake2b(b"".join(hello), digest_size=8).hexdigest()
        self._round += 1
        heard = self._gather(f"{self._session}.{self._round}", said, deadline)
        # Whoever was here has read all first notes. The next meeting at this place must not find them.
        self._board.erase(self._own[0])
        return heard

    def close(self) -> None:
        """Remove this rank's notes; call it once all ranks are known to have read them."""
        for key in self._own:
            self._board.erase(key)
        self._own.clear()

    def _gather(self, what: str, note: bytes, deadline: float) -> list[bytes]:
        keys = [f"softs.{self._name}.{what}.{rank}" for rank in range(self._size)]
        self._board.post(keys[self._rank], note)
        self._own.append(keys[self._rank])
        notes: list[bytes | None] = [None] * self._size
        while True:
            notes = [
                self._board.read(key) if note is None else note for key, note in zip(keys, notes, strict=True)
            ]
            found = [note for note in notes if note is not None]
            if len(found) == self._size:
                return found
            if time.monotonic() > deadline:
                missing = [str(rank) for rank, note in enumerate(notes) if note is None]
                raise PeerLost(
                    f'{len(found)} of {self._size} ranks came to the rendezvous of group "{self._name}"; '
                    f"not there: rank {', '.join(missing)}"
                )
            time.sleep(_LOOK_EVERY_S)


class FolderBoard:
    """Notes are files in a folder of this host, which is made if need be, for this user alone.

    Those of processes that have ended do not count.
    """

    def __init__(self, folder: str | Path) -> None:
        """Raises ConfigError for a folder of somebody else."""
        self._folder = Path(folder)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._folder.stat().st_uid != os.geteuid():
            raise ConfigError(
                f"rendezvous folder {self._folder} belongs to another user; name one of your own"
            )

    def post(self, key: str, note: bytes) -> None:
        """Pin up a note; it is there at once or not at all."""
        author = " ".join(map(str, _kernels.this_process()))
        draft = self._folder / f".{key}.{secrets.token_hex(8)}"
        draft.write_bytes(f"{author}\n".encode() + note)
        draft.rename(self._folder / key)

    def read(self, key: str) -> bytes | None:
        """Return a note; None if there is none, or its author has ended."""
        try:
            with (self._folder / key).open("rb") as file:
                text = file.read(MAX_SAID_BYTES + 64)
        except FileNotFoundError:
            return None
        author, _, note = text.partition(b"\n")
        try:
            pid, started, namespace = map(int, author.split())
            alive = _kernels.is_alive(pid, started, namespace)
        except (ValueError, TypeError):
            return None
        return note if alive else None

    def erase(self, key: str) -> None:
        """Take a note down, if it is there."""
        with suppress(FileNotFoundError):
            (self._folder / key).unlink()


class StoreBoard:
    """Notes are keys of a `torch.distributed.Store`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def post(self, key: str, note: bytes) -> None:
        """Pin up a note."""
        self._store.set(key, note.hex())

    def read(self, key: str) -> bytes | None:
        """Return a note, or None."""
        if not self._store.check([key]):
            return None
        text: bytes = self._store.get(key)
        try:
            return bytes.fromhex(text[: 2 * MAX_SAID_BYTES].decode())
        except ValueError:
            return None

    def erase(self, key: str) -> None:
        """Take a note down, if the store knows how."""
        with suppress(RuntimeError):
            self._store.delete_key(key)


class ProcessGroupRendezvous:
    """A rendezvous of the ranks of a `torch.distributed` process group, by an all-gather of it."""

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group

    def exchange(self, said: bytes, timeout_s: float) -> list[bytes]:
        """Return what every rank says, by rank; the group's own time-out counts. See `Rendezvous.exchange`."""
        import torch
        import torch.distributed as dist

        if len(said) > MAX_SAID_BYTES:
            raise ConfigError(f"a rank says {len(said)} bytes at once; at most {MAX_SAID_BYTES} are possible")
        device = "cuda" if dist.get_backend(self._group) == "nccl" else "cpu"
        own = torch.zeros(2 + MAX_SAID_BYTES, dtype=torch.uint8)
        own[: 2 + len(said)] = torch.frombuffer(
            bytearray(len(said).to_bytes(2, "little") + said), dtype=torch.uint8
        )
        own = own.to(device)
        every = [torch.empty_like(own) for _ in range(self._group.size())]
        try:
            dist.all_gather(every, own, group=self._group)
        except RuntimeError as error:
            raise PeerLost(f"rendezvous by the process group failed: {error}") from error
        heard = [bytes(row.cpu().tolist()) for row in every]
        return [row[2 : 2 + int.from_bytes(row[:2], "little")] for row in heard]

    def close(self) -> None:
        """Nothing is left behind."""


def as_rendezvous(place: object, rank: int, size: int, *, name: str, timeout_s: float) -> Rendezvous:
    """Turn what users have at hand into a rendezvous.

    Args:
        place: a `Rendezvous`; a `torch.distributed` Store or ProcessGroup; the path of a folder of this host, also as "file://PATH";
            "tcp://HOST:PORT", where rank 0 opens a TCPStore.
        rank: this process's number.
        size: number of ranks.
        name: tells groups apart that meet at the same place.
        timeout_s: how long to wait for a TCP server.

    Raises:
        ConfigError: none of these, or not for this rank and size.
        PeerLost: no server at the address.
    """
    if isinstance(place, str | Path):
        text = str(place)
        if text.startswith("tcp://"):
            return BoardRendezvous(StoreBoard(_tcp_store(text, rank, size, timeout_s)), rank, size, name)
        return BoardRendezvous(FolderBoard(text.removeprefix("file://")), rank, size, name)
    for kind, make in _torch_kinds(rank, size, name):
        if isinstance(place, kind):
            return make(place)
    if isinstance(place, Rendezvous):
        return place
    raise ConfigError(
        f"rendezvous is a {type(place).__name__}; give a Store or ProcessGroup of torch.distributed, a folder, or tcp://HOST:PORT"
    )


def _torch_kinds(rank: int, size: int, name: str) -> list[tuple[type, Callable[..., Rendezvous]]]:
    import torch.distributed as dist

    if not dist.is_available():
        return []

    def by_group(group: ProcessGroup) -> Rendezvous:
        if (group.rank(), group.size()) != (rank, size):
            raise ConfigError(
                f"rank {rank} of {size} does not fit the process group, whose rank {group.rank()} of {group.size()} this is"
            )
        return ProcessGroupRendezvous(group)

    return [
        (dist.Store, lambda store: BoardRendezvous(StoreBoard(store), rank, size, name)),
        (dist.ProcessGroup, by_group),
    ]


def _tcp_store(address: str, rank: int, size: int, timeout_s: float) -> Store:
    from torch.distributed import TCPStore

    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f'rendezvous is "{address}"; an address has the form tcp://HOST:PORT')
    try:
        return TCPStore(
            host.strip("[]"), int(port), size, rank == 0, timedelta(seconds=timeout_s), wait_for_workers=False
        )
    except RuntimeError as error:
        raise PeerLost(f"no rendezvous at {address}: {error}") from error
