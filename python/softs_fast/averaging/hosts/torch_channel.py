"""Messages by a store of torch.distributed, and streams by connections of their own that are made for one transfer each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from softs_fast.averaging.hosts.channel import PIECE_BYTES, Channel, Stream, pieces
from softs_fast.averaging.hosts.correspondent import SILENT_S
from softs_fast.collectives import LinkEngine, Messages, TorchStore, listen, shown_in
from softs_fast.errors import ConfigError, PeerLost, WireError
from softs_fast.trust import Address, bracketed

if TYPE_CHECKING:
    from torch.distributed import Store

# Looked at in one call, so that a rank that writes without end holds up no other.
_MOST_AT_ONCE = 256
# The sender counts a message, then writes it. One that is counted and not written for so long never is.
_WRITTEN_S = 5.0
_SENDER_BYTES = 4


class TorchChannel(Channel):
    """Messages and streams between the ranks of a group of torch.distributed.

    A message is a value in the store, under the next number of its receiver. Each transfer has a connection, which is
    encrypted by the token file of the store, or of SOFTS_FAST_TOKEN_FILE, and stays on this host where it does not.

    Args:
        store: Store that all ranks reach; the channel adds a prefix to its keys.
        name: Name of the group, the same on all its ranks and of no other group.
        rank: This rank's number.
        others: The ranks that it exchanges messages with.

    Raises:
        ConfigError: The store is on another host, and checks no token; or there is no token file, or one that cannot be
            used.
    """

    def __init__(self, store: Store, name: str, rank: int, others: Iterable[int]) -> None:
        self._store = dist.PrefixStore(f"softs.averaging.{name}", _connection(store))
        self._values = TorchStore(self._store)
        self._rank = rank
        self._others = frozenset(others)
        self._n_seen = 0
        self._unwritten: dict[int, float] = {}
        self._is_closing = False
        self._credentials = shown_in(self._values)
        _check_open(self._values)
        # Before a transfer finds it: whether this rank may listen where the others reach it.
        listen(self._values, name, credentials=self._credentials).shut_down()

    def send(self, rank: int, said: bytes) -> None:
        """Write a message for a rank."""
        try:
            number = self._store.add(f"{rank}.count", 1)
            self._values.set(f"{rank}.{number}", self._rank.to_bytes(_SENDER_BYTES, "little") + said)
        except RuntimeError as error:
            raise PeerLost(f"the store of torch.distributed failed: {error}") from error

    def receive(self) -> Sequence[tuple[int, bytes | PeerLost]]:
        """Return the messages for this rank; they are removed from the store."""
        now_s = time.monotonic()
        found: list[tuple[int, bytes | PeerLost]] = []
        try:
            count = self._store.add(f"{self._rank}.count", 0)
            last = min(count, self._n_seen + _MOST_AT_ONCE)
            self._unwritten |= dict.fromkeys(range(self._n_seen + 1, last + 1), now_s)
            self._n_seen = last
            for number, since_s in list(self._unwritten.items()):
                key = f"{self._rank}.{number}"
                message = self._values.get(key)
                if message is None and now_s - since_s < _WRITTEN_S:
                    continue
                del self._unwritten[number]
                if message is not None:
                    self._values.delete(key)
                    sender = int.from_bytes(message[:_SENDER_BYTES], "little")
                    if sender in self._others:
                        found.append((sender, message[_SENDER_BYTES:]))
        except RuntimeError as error:
            raise PeerLost(f"the store of torch.distributed failed: {error}") from error
        return found

    def stream(self, donor: int, reader: int, transfer: int) -> Stream:
        """Connect with the other rank."""
        name = f"{donor}.{reader}.{transfer}"
        place = dist.PrefixStore(name, _connection(self._store))
        number = int(self._rank == reader)
        try:
            engine = LinkEngine.meet(
                number, 2, place, name="transfer", timeout_s=SILENT_S, credentials=self._credentials
            )
        except (ConfigError, WireError) as error:
            # Of the other rank: its token, what it says. A training goes on with others.
            raise PeerLost(str(error)) from error
        return _LinkStream(engine, lambda: self._is_closing)

    def close(self) -> None:
        """End streams with their next piece."""
        self._is_closing = True


class _LinkStream(Stream):
    """A connection of two ranks: number 0 sends, number 1 receives."""

    def __init__(self, engine: LinkEngine, is_closing: Callable[[], bool]) -> None:
        self._engine = engine
        self._is_closing = is_closing

    def send(self, memory: Tensor) -> None:
        """Send memory piece by piece."""
        for piece in pieces(memory):
            self._move([(1, piece.numpy())], [])

    def receive(self, n_bytes: int, take: Callable[[int, Tensor], None]) -> None:
        """Receive piece by piece, into the same memory."""
        buffer = torch.empty(min(n_bytes, PIECE_BYTES), dtype=torch.uint8, device="cpu")
        for at in range(0, n_bytes, PIECE_BYTES):
            piece = buffer[: min(PIECE_BYTES, n_bytes - at)]
            self._move([], [(0, piece.numpy())])
            take(at, piece)

    def close(self) -> None:
        """Disconnect."""
        self._engine.close()

    def _move(self, sends: Messages, receives: Messages) -> None:
        if self._is_closing():
            raise PeerLost("this rank leaves")
        with self._engine.call("a transfer"):
            self._engine.exchange(sends, receives)


def _check_open(store: TorchStore) -> None:
    """Raise ConfigError if all processes of other machines could write the messages."""
    if not store.is_open or store.server is None:
        return
    host, port = store.server
    if not Address.parse(f"{bracketed(host)}:{port}", "the store").is_loopback:
        raise ConfigError(
            f"messages of averaging would be in a store of torch at {host}:{port}, which checks no token; have all ranks meet by "
            'init_process_group(init_method="softs://HOST?token_file=FILE"), with HOST of rank 0'
        )


def _connection(store: Store) -> Store:
    """Return a connection of its own to a store, by which calls that wait hold up no other thread."""
    # Older versions of torch have none.
    return store.clone() if hasattr(store, "clone") else store
