"""Rendezvous of the ranks of a group: all-gathers of small messages before there is a group.

Messages are never unpickled and prove nothing. That two ranks are on one host, for example, is proved later by reading
a random number in the other's memory.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
import torch.distributed as dist

from softs_fast.collectives.link_store import LinkStore
from softs_fast.errors import ConfigError, PeerLost
from softs_fast.identity import Process, this_process
from softs_fast.trust import Address, Der, Place, TlsFiles

#: Largest message of one rank in one exchange.
MAX_MESSAGE_BYTES = 4096

_POLL_INTERVAL_S = 0.002
_NO_FILES = TlsFiles()


@runtime_checkable
class Rendezvous(Protocol):
    """An all-gather of small messages, over any transport."""

    def exchange(self, message: bytes, timeout_s: float, /) -> list[bytes]:
        """Return the messages of all ranks, by rank.

        Raises:
            PeerLost: a rank did not join in time; the text names the missing ranks.
            ConfigError: the message is too long, or another process has the same rank.
        """

    def close(self) -> None:
        """Remove all data of this rank from the transport; nothing if it has left none."""
        return


class KeyValueStore(Protocol):
    """A key-value store that all ranks can reach."""

    @property
    def server(self) -> tuple[str, int] | None:
        """Host and port of the process that serves it; None if there is none, or it is not known."""

    @property
    def credentials(self) -> Der | None:
        """What its server and this process show each other; None if it checks no token."""

    def set(self, key: str, value: bytes) -> None:
        """Store a value."""

    def get(self, key: str) -> bytes | None:
        """Return a value; None if there is none, or if its author is known to have ended."""

    def delete(self, key: str) -> None:
        """Remove a value, if it exists."""

    def decide(self, key: str, value: bytes) -> None:
        """Store a value, unless there is one: the first one counts for all ranks."""

    def decided(self, key: str) -> bytes | None:
        """Return the value that `decide` has stored, even if its author has ended; or None."""


class StoreRendezvous:
    """A rendezvous through a key-value store. Values that an earlier rendezvous left in the store are not used.

    Args:
        store: the key-value store.
        rank: this process's number.
        size: number of ranks.
        name: distinguishes groups that use the same store.

    Raises:
        ConfigError: the name has other characters than letters, digits, "_", "." and "-".
    """

    def __init__(self, store: KeyValueStore, rank: int, size: int, name: str) -> None:
        if not re.fullmatch(r"[\w.-]+", name):
            raise ConfigError(f'group name is "{name}"; it may have letters, digits, "_", "." and "-"')
        self._store = store
        self._rank = rank
        self._size = size
        self._name = name
        self._session = ""
        self._round = 0
        self._own: list[str] = []

    @property
    def store(self) -> KeyValueStore:
        """The store in which the ranks meet."""
        return self._store

    def exchange(self, message: bytes, timeout_s: float, /) -> list[bytes]:
        """Return the messages of all ranks, by rank; see `Rendezvous.exchange`."""
        _check_length(message)
        deadline = time.monotonic() + timeout_s
        if not self._session:
            # Keys of later rounds contain a hash of random numbers of all ranks, so no other rendezvous uses them.
            own = secrets.token_bytes(16)
            hello = self._gather("hello", own, deadline)
            if hello[self._rank] != own:
                raise ConfigError(
                    f'another process joins group "{self._name}" as rank {self._rank} too; give each a number of its own'
                )
            self._session = hashlib.blake2b(b"".join(hello), digest_size=8).hexdigest()
        self._round += 1
        messages = self._gather(f"{self._session}.{self._round}", message, deadline)
        # All ranks have read all first values. The next rendezvous in this store must not find them.
        self._store.delete(self._own[0])
        return messages

    def close(self) -> None:
        """Remove this rank's values; call it once all ranks are known to have read them."""
        for key in self._own:
            self._store.delete(key)
        self._own.clear()

    def _gather(self, what: str, value: bytes, deadline: float) -> list[bytes]:
        keys = [f"softs.{self._name}.{what}.{rank}" for rank in range(self._size)]
        self._store.set(keys[self._rank], value)
        self._own.append(keys[self._rank])
        values: list[bytes | None] = [None] * self._size
        while True:
            values = [
                self._store.get(key) if known is None else known
                for key, known in zip(keys, values, strict=True)
            ]
            found = [known for known in values if known is not None]
            if len(found) == self._size:
                return found
            if time.monotonic() > deadline:
                missing = [str(rank) for rank, known in enumerate(values) if known is None]
                raise PeerLost(
                    f'{len(found)} of {self._size} ranks came to the rendezvous of group "{self._name}"; '
                    f"not there: rank {', '.join(missing)}"
                )
            time.sleep(_POLL_INTERVAL_S)


class FolderStore:
    """A key-value store of files in a folder of this host; the folder is created if necessary, for this user only.

    Values of processes that have ended are ignored.
    """

    def __init__(self, folder: str | Path) -> None:
        """Raises ConfigError for a folder of another user."""
        self._folder = Path(folder)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._folder.stat().st_uid != os.geteuid():
            raise ConfigError(
                f"rendezvous folder {self._folder} belongs to another user; name one of your own"
            )

    @property
    def server(self) -> None:
        """No process serves it."""

    @property
    def credentials(self) -> None:
        """It is of this host and user."""

    def set(self, key: str, value: bytes) -> None:
        """Store a value, atomically."""
        author = " ".join(map(str, this_process()))
        draft = self._folder / f".{key}.{secrets.token_hex(8)}"
        draft.write_bytes(f"{author}\n".encode() + value)
        draft.rename(self._folder / key)

    def get(self, key: str) -> bytes | None:
        """Return a value; None if there is none, or its author has ended."""
        author, value = self._read(key)
        try:
            pid, started, namespace = map(int, author.split())
            alive = Process(pid, started, namespace).is_alive()
        except (ValueError, TypeError):
            return None
        return value if alive else None

    def delete(self, key: str) -> None:
        """Remove a value, if it exists."""
        with suppress(FileNotFoundError):
            (self._folder / key).unlink()

    def decide(self, key: str, value: bytes) -> None:
        """Store a value, unless there is one: the first one counts for all ranks."""
        draft = f".{key}.{secrets.token_hex(8)}"
        self.set(draft, value)
        with suppress(FileExistsError):
            (self._folder / key).hardlink_to(self._folder / draft)
        self.delete(draft)

    def decided(self, key: str) -> bytes | None:
        """Return the value that `decide` has stored, even if its author has ended; or None."""
        author, value = self._read(key)
        return value if author else None

    def _read(self, key: str) -> tuple[bytes, bytes]:
        """Return author and value, both empty if there is none."""
        try:
            with (self._folder / key).open("rb") as file:
                text = file.read(MAX_MESSAGE_BYTES + 64)
        except FileNotFoundError:
            return b"", b""
        author, _, value = text.partition(b"\n")
        return author, value


class TorchStore:
    """A key-value store in a `torch.distributed.Store`."""

    def __init__(self, store: dist.Store) -> None:
        self._store = store
        # The store behind all prefixes.
        self._bare = store
        while isinstance(self._bare, dist.PrefixStore):
            self._bare = self._bare.underlying_store

    @property
    def server(self) -> tuple[str, int] | None:
        """Host and port of a TCPStore or a LinkStore, also of one behind prefixes; None for other stores."""
        store = self._bare
        return (store.host, store.port) if isinstance(store, dist.TCPStore | LinkStore) else None

    @property
    def credentials(self) -> Der | None:
        """What the server of a LinkStore and this process show each other; None for other stores."""
        store = self._bare
        return store.credentials if isinstance(store, LinkStore) else None

    @property
    def is_open(self) -> bool:
        """Whether each process that reaches its server can read and write it, as that of a TCPStore."""
        return isinstance(self._bare, dist.TCPStore)

    def set(self, key: str, value: bytes) -> None:
        """Store a value."""
        self._store.set(key, value.hex())

    def get(self, key: str) -> bytes | None:
        """Return a value, or None."""
        if not self._store.check([key]):
            return None
        text: bytes = self._store.get(key)
        try:
            return bytes.fromhex(text[: 2 * MAX_MESSAGE_BYTES].decode())
        except ValueError:
            return None

    def delete(self, key: str) -> None:
        """Remove a value, if the store supports it."""
        with suppress(RuntimeError, PeerLost):
            self._store.delete_key(key)

    def decide(self, key: str, value: bytes) -> None:
        """Store a value, unless there is one: the first one counts for all ranks."""
        self._store.compare_set(key, "", value.hex())

    def decided(self, key: str) -> bytes | None:
        """Return the value that `decide` has stored; or None."""
        return self.get(key)


class ProcessGroupRendezvous(Rendezvous):
    """A rendezvous of the ranks of a `torch.distributed` process group, by its all-gather."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    @property
    def store(self) -> KeyValueStore:
        """The store of the group."""
        return TorchStore(self._group.get_group_store())

    def exchange(self, message: bytes, timeout_s: float, /) -> list[bytes]:
        """Return the messages of all ranks, by rank, within the group's own time-out; see `Rendezvous.exchange`."""
        _check_length(message)
        device = "cuda" if dist.get_backend(self._group) == "nccl" else "cpu"
        own = torch.zeros(2 + MAX_MESSAGE_BYTES, dtype=torch.uint8, device="cpu")
        own[: 2 + len(message)] = torch.frombuffer(
            bytearray(len(message).to_bytes(2, "little") + message), dtype=torch.uint8
        )
        own = own.to(device)
        every = [torch.empty_like(own) for _ in range(self._group.size())]
        try:
            dist.all_gather(every, own, group=self._group)
        except RuntimeError as error:
            raise PeerLost(f"rendezvous by the process group failed: {error}") from error
        received = [bytes(row.cpu().tolist()) for row in every]
        return [row[2 : 2 + int.from_bytes(row[:2], "little")] for row in received]


class SubsetRendezvous(Rendezvous):
    """A rendezvous of some ranks of another one; the other ranks must make as many exchanges in their subsets."""

    def __init__(self, place: Rendezvous, members: Sequence[int]) -> None:
        self._place = place
        self._members = members

    @property
    def store(self) -> KeyValueStore | None:
        """The store in which all ranks meet."""
        return store_of(self._place)

    def exchange(self, message: bytes, timeout_s: float, /) -> list[bytes]:
        """Return the messages of all members; see `Rendezvous.exchange`."""
        messages = self._place.exchange(message, timeout_s)
        return [messages[rank] for rank in self._members]


def store_of(place: Rendezvous) -> KeyValueStore | None:
    """Return the store behind a rendezvous, its attribute `store`, which ranks may use later, too; None without one."""
    found: KeyValueStore | None = getattr(place, "store", None)
    return found


def shown_in(store: KeyValueStore | None, files: TlsFiles = _NO_FILES) -> Der | None:
    """Return what ranks that meet in a store show each other.

    That is the token file they were given, else the one by which they reach the store, else that of SOFTS_FAST_TOKEN_FILE.

    Raises:
        ConfigError: the file cannot be used.
    """
    found = None if store is None or files.token_file is not None else store.credentials
    return found or Place(()).credentials_or(files).der()


def as_rendezvous(
    place: object, rank: int, size: int, *, name: str, timeout_s: float, files: TlsFiles = _NO_FILES
) -> Rendezvous:
    """Return a rendezvous for a user's argument.

    Args:
        place: a `Rendezvous`; a `torch.distributed` Store or ProcessGroup; the path of a folder of this host, also as
            "file://PATH"; "softs://HOST:PORT/JOB?token_file=FILE", where rank 0 serves a `LinkStore`; "tcp://HOST:PORT",
            where it opens a TCPStore, which checks no token.
        rank: this process's number.
        size: number of ranks.
        name: distinguishes groups that use the same place.
        timeout_s: how long to wait for the process that serves a store, seconds.
        files: token file that is given beside a place.

    Raises:
        ConfigError: none of these, or not for this rank and size.
        PeerLost: no server at the address.
    """
    store = as_store(place, size=size, serves=rank == 0, timeout_s=timeout_s, files=files)
    if store is not None:
        return StoreRendezvous(store, rank, size, name)
    if isinstance(place, dist.ProcessGroup):
        if (place.rank(), place.size()) != (rank, size):
            raise ConfigError(
                f"rank {rank} of {size} does not fit the process group, in which this is rank {place.rank()} of "
                f"{place.size()}"
            )
        return ProcessGroupRendezvous(place)
    if isinstance(place, Rendezvous):
        return place
    raise ConfigError(
        f"rendezvous is a {type(place).__name__}; give a Store or ProcessGroup of torch.distributed, a folder, "
        "softs://HOST:PORT or tcp://HOST:PORT"
    )


def as_store(
    place: object, *, size: int, serves: bool, timeout_s: float, files: TlsFiles = _NO_FILES
) -> KeyValueStore | None:
    """Return the store behind a user's argument for a rendezvous; None if there is none.

    Args:
        place: Place where the ranks meet, as for `as_rendezvous`.
        size: Number of ranks.
        serves: Whether this process serves the store of an address; others connect to it.
        timeout_s: Seconds to wait for the process that serves it.
        files: Token file that is given beside a place.

    Raises:
        ConfigError: the address is malformed, or the folder is another user's.
        PeerLost: no server at the address.
    """
    if isinstance(place, str | Path):
        text = str(place)
        if text.startswith("tcp://"):
            return TorchStore(_tcp_store(text, size, serves, timeout_s))
        if text.startswith("softs://"):
            return TorchStore(LinkStore.at(text, serves=serves, timeout_s=timeout_s, files=files))
        return FolderStore(text.removeprefix("file://"))
    return TorchStore(place) if isinstance(place, dist.Store) else None


def _check_length(message: bytes) -> None:
    if len(message) > MAX_MESSAGE_BYTES:
        raise ConfigError(
            f"a message of {len(message)} bytes is too long; at most {MAX_MESSAGE_BYTES} are possible"
        )


def _tcp_store(address: str, size: int, serves: bool, timeout_s: float) -> dist.Store:
    host, port = Address.split(address, "rendezvous", "tcp://")
    try:
        return dist.TCPStore(host, port, size, serves, timedelta(seconds=timeout_s), wait_for_workers=False)
    except RuntimeError as error:
        raise PeerLost(f"no rendezvous at {address}: {error}") from error
