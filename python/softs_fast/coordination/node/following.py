"""Workers that copy a state beside the steps of its epoch: a snapshot, then the gradients of each step.

A follower applies each step, as all members do, so it has their weights. Until it is a member it takes part in no other
call. Source: own, see docs/coordination.md.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from ...collectives import ReduceOp, Strategy
from ...errors import PeerLost
from ..job.messages import Follow, Table
from ..session.store import SessionStore
from .engines import EngineOf, link_engine, memory_engine
from .sent_trees import digest, receive_tree
from .training_state import TrainingState

__all__ = ["Channel", "Comparison", "can_follow", "follow", "pair"]

# Below all digests, and their negatives.
_NO_DIGEST = -(1 << 62)


def can_follow(engine: EngineOf) -> bool:
    """Return whether a process may have two engines of a kind at once: those of others may use one port or one group."""
    kind = engine.func if isinstance(engine, functools.partial) else engine
    return kind in (memory_engine, link_engine)


class Channel:
    """An engine of a source and its followers, beside that of the epoch.

    Args:
        follow: Source and followers.
        rank: Rank of this worker in the table of that.
        store: Store of these workers.
        engine: Function that makes the engine.
    """

    def __init__(self, follow: Follow, rank: int, store: SessionStore, engine: EngineOf) -> None:
        assert follow.table.source_rank is not None
        self.number = follow.number
        self.source = follow.table.source_rank
        self._table, self._rank, self._engine = follow.table, rank, engine
        # None once the channel is closed: both have the memory of the engine.
        self._store: SessionStore | None = store
        self._strategy: Strategy | None = None
        self._over = ""
        self._closing = threading.Lock()

    def open(self) -> Strategy:
        """Make the engine.

        Raises:
            PeerLost: A worker is lost, or `end` was called.
        """
        assert self._store is not None
        self._strategy = self._engine(self._table, self._rank, self._store)
        self.check()
        return self._strategy

    def check(self) -> None:
        """Raise PeerLost if `end` was called."""
        if self._over:
            raise PeerLost(self._over)

    def end(self, reason: str) -> None:
        """End pending calls, and make later ones raise PeerLost; from any thread, without a wait."""
        self._over = self._over or reason
        with self._closing:
            if self._store is not None:
                self._store.end(reason)

    def close(self) -> None:
        """Leave the engine, and free its memory; no call may be pending."""
        with self._closing:
            # The engine uses it until its end.
            store, self._store = self._store, None
        strategy, self._strategy = self._strategy, None
        if strategy is not None:
            strategy.close()
        del store


def follow(
    channel: Channel, state: TrainingState, overwriting: Callable[[], None], has: Callable[[int, int], None]
) -> None:
    """Copy the state of a source, and apply each step after it, until its epoch has ended.

    Args:
        channel: Channel with the source.
        state: State to be overwritten.
        overwriting: Function called just before that is begun.
        has: Function called with each step that the state has, and how many later ones there were at the source.

    Raises:
        PeerLost: A worker was lost, or the channel has ended.
        Exception: The state of the source does not fit this one, or a step cannot be applied.
    """
    strategy, source = channel.open(), channel.source
    place = pair(0, 0)

    def load(tree: Any) -> None:
        overwriting()
        state.load(tree)

    take: Callable[[Any], None] = load
    while (tree := receive_tree(strategy, source)) is not None:
        strategy.broadcast_tensor(place, source)
        channel.check()
        take(tree)
        # Not beside the next one.
        del tree
        take = state.replay
        has(int(place[0]), int(place[1]))
    strategy.barrier()


class Comparison:
    """Compares the weights of followers with those of their source, while the body of the first step runs.

    A follower has applied the same gradients to the same state. Its weights differ if anything but `apply` has changed
    those of the members meanwhile, or `apply` depends on anything else.

    Args:
        table: Table of the epoch, with followers; its weights are there.
        rank: Rank of this worker.
        state: State of this worker.
    """

    def __init__(self, table: Table, rank: int, state: TrainingState) -> None:
        self._digest: Future[int] | None = None
        if rank in (table.source_rank, *table.followers):
            executor = ThreadPoolExecutor(1, "softs-fast digest of weights")
            self._digest = executor.submit(digest, state.replayed())
            executor.shutdown(wait=False)

    def check(self, strategy: Strategy) -> None:
        """Wait for the result; a call of all ranks.

        Raises:
            PeerLost: The weights differ, on all ranks; or a rank was lost.
        """
        number = _NO_DIGEST if self._digest is None else self._digest.result()
        both = pair(number, _NO_DIGEST if self._digest is None else -number)
        strategy.all_reduce(both, ReduceOp.MAX)
        largest, smallest = int(both[0]), -int(both[1])
        if largest != smallest:
            raise PeerLost(
                "a worker that has joined has other weights after the same gradients, so it copies them again, and this step "
                "is made again: something else than TrainingState(apply=) changes weights or the state of an optimizer"
            )


def pair(first: int, second: int) -> torch.Tensor:
    """Return int64 [2], in host memory."""
    return torch.tensor([first, second], dtype=torch.int64, device="cpu")
