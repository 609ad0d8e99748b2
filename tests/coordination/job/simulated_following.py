"""Copies of a state beside steps in virtual time: followers of any speed, and sources that die in the midst of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulated_engine import apply

from softs_fast.coordination.job.messages import Follow
from softs_fast.coordination.job.participant import Build, Copy, EndEngine, GiveUp

if TYPE_CHECKING:
    from simulated_job import Process

# Steps that wait for followers, at most.
_MOST_STEPS = 8


class Stream:
    """What a source sends: a snapshot, steps, and None after the last one."""

    def __init__(self) -> None:
        self.items: list[tuple[int, Any] | None] = []
        self.is_broken = False
        #: How many of them a follower has.
        self.received: dict[str, int] = {}


class Copies:
    """The copies beside steps in which a process takes part."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._serving: tuple[Stream, int] | None = None
        self._copying: Stream | None = None

    def act(self, action: Any) -> None:
        match action:
            case Copy(follow, rank) if rank == follow.table.source_rank:
                self._break_serving()
                self._serving = self._stream(follow), follow.number
            case Copy(follow):
                self._copying = stream = self._stream(follow)
                self._later(stream, follow.number, 0)
            case Build():
                self._break_serving()
                self._copying = None
            case EndEngine(fence) if not fence.planned:
                self._break_serving()
            case GiveUp():
                self.kill()

    def begin(self) -> None:
        """Take the snapshot before this step, or before a later one."""
        process = self._process
        if self._serving is not None and not self._serving[0].items and process.world.random.random() < 0.5:
            self._serving[0].items.append((process.machine.state.committed, process.weights))

    def commit(self, step: int, *, is_last: bool) -> None:
        if self._serving is None:
            return
        stream, number = self._serving
        if stream.received and len(stream.items) - min(stream.received.values()) > _MOST_STEPS:
            self._break_serving()
            self._process.act(self._process.machine.unfollowed(number, "the followers are slow"))
            return
        if stream.items:
            stream.items.append((step, self._process.held))
        if is_last:
            stream.items.append(None)

    def kill(self) -> None:
        self._break_serving()
        if self._copying is not None:
            self._copying.is_broken = True
        self._copying = None

    def _break_serving(self) -> None:
        if self._serving is not None:
            self._serving[0].is_broken = True
        self._serving = None

    def _stream(self, follow: Follow) -> Stream:
        key = follow.table.boot, follow.table.epoch, follow.number
        return self._process.world.streams.setdefault(key, Stream())

    def _later(self, stream: Stream, number: int, at: int) -> None:
        world = self._process.world
        stream.received[self._process.id] = at
        # The snapshot takes longer than a step.
        delay_s = world.delay(0.05 if at else 0.6)
        world.later(delay_s, lambda: self._process.run(lambda: self._receive(stream, number, at)))

    def _receive(self, stream: Stream, number: int, at: int) -> None:
        process = self._process
        if self._copying is not stream:
            return
        if at == len(stream.items) and not stream.is_broken:
            self._later(stream, number, at)
            return
        # What has been sent may arrive, or be lost.
        if at == len(stream.items) or (stream.is_broken and process.world.random.random() < 0.5):
            self._copying = None
            process.act(process.machine.unfollowed(number, "the source is lost"))
            return
        item = stream.items[at]
        if item is None:
            self._copying = None
            return
        step, value = item
        if not at:
            process.act(process.machine.overwriting())
        process.weights = apply(process.weights, step, value) if at else value
        if process.world.random.random() < process.world.differ_in:
            process.weights = ("wrong", process.weights)
        self._later(stream, number, at + 1)
        backlog = sum(one is not None for one in stream.items[at + 1 :])
        process.act(process.machine.followed(number, step, backlog))
