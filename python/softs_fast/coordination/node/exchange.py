"""How the members of an epoch meet, through its store."""

from __future__ import annotations

from datetime import timedelta

from torch.distributed import Store

from ...collectives import TorchStore
from ...errors import WireError
from ..session.store import SessionStore

__all__ = ["EpochExchange", "wait_for_members"]

# A value of the store has 64 KiB at most.
_PIECE_BYTES = 60_000
# Lengths of messages, in front of them.
_LENGTH_BYTES = 4
# Longest message of a member.
_MAX_BYTES = 4096


class EpochExchange:
    """All-gathers of small messages by a store with calls that end with the epoch; a `Rendezvous`.

    Rank 0 gathers, so that a member makes two requests for each exchange, and rank 0 as many as there are members.

    Args:
        store: Store of the epoch.
        rank: This worker's number.
        size: Number of members.
    """

    def __init__(self, store: SessionStore, rank: int, size: int) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._n_exchanges = 0

    @property
    def store(self) -> TorchStore:
        """The store of the epoch."""
        return TorchStore(self._store)

    def exchange(self, message: bytes, timeout_s: float, /) -> list[bytes]:
        """Return the messages of all members, by rank.

        Args:
            message: Message of this member, 4,096 bytes at most.
            timeout_s: Seconds to wait for one member; the store ends the wait when the epoch ends.

        Raises:
            PeerLost: the epoch is over, or a member did not come in time.
            WireError: a message is too long, or malformed.
        """
        if len(message) > _MAX_BYTES:
            raise WireError(
                f"a message of {len(message)} bytes among members; at most {_MAX_BYTES} are possible"
            )
        self._n_exchanges += 1
        name = f"exchange.{self._n_exchanges}"
        self._store.set_timeout(timedelta(seconds=timeout_s))
        # A value is not empty: a key without a value might be taken for none.
        self._store.set(f"{name}.of.{self._rank}", b"." + message)
        if self._rank == 0:
            said = [self._store.get(f"{name}.of.{rank}")[1:] for rank in range(self._size)]
            packed = b"".join(len(one).to_bytes(_LENGTH_BYTES, "little") + one for one in said)
            for begin in range(0, len(packed), _PIECE_BYTES):
                self._store.set(f"{name}.{begin}", packed[begin : begin + _PIECE_BYTES])
            return said
        return self._unpacked(name)

    def close(self) -> None:
        """Do nothing: the keys are dropped with the epoch."""

    def _unpacked(self, name: str) -> list[bytes]:
        packed, at = b"", 0

        def take(n_bytes: int) -> bytes:
            nonlocal packed, at
            at += n_bytes
            while len(packed) < at:
                piece = self._store.get(f"{name}.{len(packed)}")
                if not piece:
                    raise WireError("rank 0 tells of fewer messages than there are members")
                packed += piece
            return packed[at - n_bytes : at]

        said = []
        for _ in range(self._size):
            n_bytes = int.from_bytes(take(_LENGTH_BYTES), "little")
            if n_bytes > _MAX_BYTES:
                text = f"rank 0 tells of a message of {n_bytes} bytes; at most {_MAX_BYTES} are possible"
                raise WireError(text)
            said.append(take(n_bytes))
        return said


def wait_for_members(store: Store, size: int, timeout_s: float, what: str = "here") -> None:
    """Wait until all members of an epoch have called this; once an epoch for each `what`.

    Args:
        store: Store of the epoch.
        size: Number of members.
        timeout_s: Seconds to wait.
        what: State that the members have reached then; it names the keys in the store.

    Raises:
        PeerLost: the epoch is over, or not all have come in time.
    """
    if store.add(f"members that are {what}", 1) == size:
        store.set(f"all are {what}", "")
    store.wait([f"all are {what}"], timedelta(seconds=timeout_s))
