"""Workers that have left, those of them that are started again, and others that may have ended without that being known."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...identity import Process
from ..link.tasks import MainTask
from ..process.part import Unreadable
from ..store import SegmentAddress
from .backend import Back, Done, Event, Lost

__all__ = ["Departures", "losses_first", "may_have_lost_a_peer"]

#: How long the end of a worker may take to be known after others could not read from it, seconds.
_LEFT_S = 1.0
#: How long the end of a process may take after it has begun to end, seconds.
_END_S = 60.0


@dataclass
class Departures:
    """What is known of the ends of the workers of a flow.

    Attributes:
        left: Workers that have left.
        away: Workers among these that are started again.
        ending: Segments that another worker could not read, by number of the worker that holds them and has not left.
        n_gone: Number of departures of workers, repeated ones included.
    """

    left: set[int] = field(default_factory=set)
    away: set[int] = field(default_factory=set)
    ending: dict[int, SegmentAddress] = field(default_factory=dict)
    n_gone: int = 0

    def leave(self, worker: int) -> None:
        """A worker has left, which is what `ending` waits for: of what arrives at once, failures elsewhere may be first."""
        self.left.add(worker)
        self.ending.clear()
        self.n_gone += 1

    def join(self, worker: int) -> None:
        """A worker has been started again."""
        self.away.discard(worker)
        self.left.discard(worker)

    def clear(self) -> None:
        """All workers begin anew, or the flow has ended."""
        self.left.clear()
        self.away.clear()
        self.ending.clear()

    def note_ending(self, work: MainTask, n_gone: int, workers: Sequence[int]) -> None:
        """A function could not read its rows: one of the processes that hold them may have ended, which is not known yet.

        Args:
            work: Work of the function.
            n_gone: Number of departures when the work was sent.
            workers: Workers with processes.
        """
        if n_gone == self.n_gone:
            holders = {place.worker: place.segment for one in work.columns.places.values() for place in one}
            self.ending |= {worker: one for worker, one in holders.items() if worker in workers}

    def await_known(self, receive: Callable[[float], None], node: str | None) -> None:
        """A worker failed, perhaps because another one has ended: wait for a short time until that is known.

        Args:
            receive: Function that takes what arrives within seconds, departures too.
            node: Node of this process; None: it has no values of rows any more.
        """
        end_s, n_gone = time.monotonic() + _LEFT_S, self.n_gone
        while not self.ending and not self.left and time.monotonic() < end_s:
            receive(0.1)
        while self.ending and self.n_gone == n_gone and time.monotonic() < end_s + _END_S:
            receive(0.1)
            for worker, one in list(self.ending.items()):
                # Of a process on another node only its connection tells.
                is_far = one.node != node
                if time.monotonic() > end_s and (
                    is_far or Process(one.pid, one.started, one.pid_namespace).is_alive()
                ):
                    del self.ending[worker]
        self.ending.clear()


def losses_first(events: Sequence[Event]) -> list[Event]:
    """Return events in an order in which losses come before the failures that they may have caused elsewhere.

    A worker that has failed, perhaps because another one has ended, says so in the same moment as the end of that one is
    known, or before it.
    """
    if not any(isinstance(event, Done) and event.result.failure is not None for event in events):
        return list(events)
    first: list[Event] = []
    others: list[Event] = []
    for event in events:
        # A worker that has joined again in between keeps its place.
        if isinstance(event, Lost) and Back(event.worker) not in others:
            # What it had done well comes before its end.
            own = [one for one in others if isinstance(one, Done) and one.worker == event.worker]
            first += [one for one in own if one.result.failure is None]
            others = [one for one in others if one not in first]
            first.append(event)
        else:
            others.append(event)
    return first + others


def may_have_lost_a_peer(event: Event, *, is_shared: bool) -> bool:
    """Return whether a worker could not read from another one, or perhaps failed in a collective call with it.

    Args:
        event: Event of the worker.
        is_shared: Whether other workers have not ended the step.
    """
    if not isinstance(event, Done) or event.result.failure is None or event.result.unread:
        return False
    text = event.result.failure.text
    if text.startswith(Unreadable.__name__):
        return True
    # Errors of torch.distributed are RuntimeErrors, or derived from them with names that begin so; then those of the backend
    # "softs" and of its store.
    return is_shared and text.startswith(("RuntimeError", "Dist", "BackendLost", "PeerLost"))
