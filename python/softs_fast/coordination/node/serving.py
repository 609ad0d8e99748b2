"""The source of a copy beside steps: it sends its state to followers from a thread of its own.

The thread that trains takes the snapshot between two steps, and copies the gradients of each step from then on before it
applies them. All else is done by the other thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import torch

from ...collectives import Strategy
from ...errors import PeerLost
from ...process import join
from ...user_code import text_of_error
from .following import Channel, pair
from .sent_trees import send_tree
from .state_tree import encode_tree
from .training_state import TrainingState

__all__ = ["Serving"]

# Bytes of steps that may wait to be sent, beside as many as the snapshot has.
_FREE_BYTES = 64 << 20
# A step counts as so many bytes at least: followers of a small model with short steps may never catch up, and to copy
# such a model takes a moment.
_LEAST_BYTES = 1 << 18

_Phase = Literal["new", "meeting", "warm", "serving", "over"]


class _Item(NamedTuple):
    """A snapshot, or a step: its number, the bytes that count as waiting, and a tree."""

    step: int
    n_bytes: int
    text: bytes
    tensors: Mapping[str, torch.Tensor]


class Serving:
    """Sends the state of a source from a thread of its own.

    Args:
        channel: Channel to the followers.
        state: State of this worker.
        failed: Function called with the reason when it cannot go on, from any thread.
    """

    def __init__(self, channel: Channel, state: TrainingState, failed: Callable[[str], object]) -> None:
        self._channel, self._state, self._failed = channel, state, failed
        self._changed = threading.Condition()
        # new: the next step says how much memory the snapshot takes, and begins the thread, not before: the engine of the
        # epoch may still be made; meeting: the thread makes the engine, and fetches the memory, which takes several times as
        # long as the copy; warm: the next step copies; serving; over.
        self._phase: _Phase = "new"
        # Memory of the snapshot.
        self._memory: dict[str, torch.Tensor] = {}
        # What is to be sent, None after the last step; and the bytes of its steps, without the snapshot.
        self._queue: deque[_Item | None] = deque()
        self._n_bytes = self._most_bytes = 0
        # Memory of a step that was sent: new memory takes longer than a copy.
        self._spare: Mapping[str, torch.Tensor] = {}
        self._thread = threading.Thread(target=self._run, name="softs-fast state for followers", daemon=True)

    # --- By the thread that trains ---

    def begin(self, committed: int) -> None:
        """Begin the copy in a step of its own; take the snapshot before a later one, if there is memory for it.

        Args:
            committed: Steps that the state has.
        """
        phase = self._phase
        if phase not in ("new", "warm"):
            return
        try:
            if phase == "new":
                self._memory = {
                    place: torch.empty(one.shape, dtype=one.dtype, device="cpu")
                    for place, one in self._state.tensors().items()
                }
                self._go("new", "meeting")
                self._thread.start()
            else:
                text, tensors = self._state.snapshot(self._memory)
                self._memory = {}
                self._most_bytes = _FREE_BYTES + sum(one.nbytes for one in tensors.values())
                self._put(_Item(committed, 0, text, tensors))
                self._go("warm", "serving")
        except Exception as error:  # of the user's state_dict, too
            self._give_up(text_of_error(error))

    def apply(self, step: int, *, is_last: bool) -> None:
        """Keep the reduced gradients of a step that is about to be applied.

        Args:
            step: Number of the step.
            is_last: Whether it is the last one of the epoch.
        """
        if self._phase == "serving":
            try:
                self._keep(step)
            except Exception as error:  # of the user's state_dict, too
                self._give_up(text_of_error(error))
        if is_last:
            # Followers of a copy that has not begun copy in the next epoch.
            self._go("new", "over")
            self._put(None)

    def _keep(self, step: int) -> None:
        before, self._spare = self._spare, {}
        text, tensors = self._state.reduced(before)
        n_bytes = max(len(text) + sum(one.nbytes for one in tensors.values()), _LEAST_BYTES)
        if self._n_bytes + n_bytes > self._most_bytes:
            raise PeerLost(
                f"{len(self._queue)} steps wait for the followers and count {self._n_bytes + n_bytes} bytes, at most "
                f"{self._most_bytes} may wait: the followers are slower than the members"
            )
        self._put(_Item(step, n_bytes, text, tensors))

    # --- By any thread ---

    def end(self, reason: str) -> None:
        """End it at once, without a wait."""
        with self._changed:
            self._phase = "over"
            self._changed.notify_all()
        self._channel.end(reason)

    def close(self) -> None:
        """End it, and wait for its thread, if it has begun."""
        self.end("the source has left")
        if self._thread.ident is not None:
            join(self._thread)

    def _give_up(self, reason: str) -> None:
        self.end(reason)
        self._failed(reason)

    def _go(self, before: _Phase, after: _Phase) -> None:
        with self._changed:
            if self._phase == before:
                self._phase = after
            self._changed.notify_all()

    def _put(self, item: _Item | None) -> None:
        with self._changed:
            if self._phase != "over":
                self._n_bytes += 0 if item is None else item.n_bytes
                self._queue.append(item)
            self._changed.notify_all()

    # --- Its thread ---

    def _run(self) -> None:
        try:
            self._serve(self._channel.open(), self._channel.source)
        except Exception as error:
            # A follower that is lost, or has failed, is known to the coordinator without this.
            is_known = isinstance(error, PeerLost) and self._phase != "meeting"
            if not is_known and self._phase != "over":
                self._give_up(text_of_error(error))
        finally:
            with self._changed:
                self._phase = "over"
                self._queue.clear()
                self._memory, self._spare = {}, {}
            self._channel.close()

    def _serve(self, strategy: Strategy, source: int) -> None:
        for one in self._memory.values():
            one.zero_()
        self._go("meeting", "warm")
        while (item := self._next()) is not None:
            send_tree(strategy, item.text, item.tensors)
            with self._changed:
                self._n_bytes -= item.n_bytes
                backlog = sum(one is not None for one in self._queue)
            strategy.broadcast_tensor(pair(item.step, backlog), source)
            # Not that of the snapshot.
            self._spare = item.tensors if item.n_bytes else {}
            del item
        send_tree(strategy, *encode_tree(None))
        strategy.barrier()

    def _next(self) -> _Item | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._phase == "over")
            if self._phase == "over":
                raise PeerLost("the copy was ended")
            return self._queue.popleft()
