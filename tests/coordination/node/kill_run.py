"""A training of which workers and the coordinator are killed at random moments, compared bit by bit with a replay."""

from __future__ import annotations

import os
import queue
import random
import signal
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coordinator_process import Cluster, Coordinator
from trainers import Start, Trainer, Training, engine_of

from softs_fast.collectives import Strategy
from softs_fast.coordination.job.messages import Table
from softs_fast.coordination.node import memory_engine
from softs_fast.coordination.session.store import SessionStore

#: What is killed, and how often among a hundred.
KINDS = {
    "one worker": 45,
    "rank 0": 10,
    "several workers": 15,
    "a worker in the join of another": 12,
    "a worker that joins": 10,
    "all workers": 3,
    "the coordinator": 2,
    "the coordinator and a worker": 3,
}
# The others know of a kill within this; seconds.
_FENCE_S = 0.07
# A worker joins within this, if it has the processor to itself; seconds.
_JOIN_S = 0.12
# A step takes so long; seconds.
_STEP_S = 0.004
_ENDLESS = 10**9


class Jittered:
    """An engine of which each call begins and ends at another time on each rank, so that ranks die between any two.

    Args:
        name: Name of an engine of trainers.
        number: Number of the worker.
        n_workers: Number of workers.
        seed: Seed of the pauses.
    """

    def __init__(self, name: str, number: int, n_workers: int, seed: int) -> None:
        self._name = name
        self._number = number
        self._long = 0.08 / n_workers
        self._chance = random.Random(seed)

    def __call__(self, table: Table, rank: int, store: SessionStore) -> Strategy:
        """Return the strategy of an epoch."""
        strategy = (engine_of(self._name, self._number) or memory_engine)(table, rank, store)
        for name in ("all_reduce", "all_reduce_gradients"):
            setattr(strategy, name, self._paused(getattr(strategy, name)))
        return strategy

    def _paused(self, call: Callable[..., None]) -> Callable[..., None]:
        def paused(*args: Any) -> None:
            self._pause()
            call(*args)
            self._pause()

        return paused

    def _pause(self) -> None:
        chance = self._chance.random()
        if chance < self._long:
            # A kill that comes meanwhile is known before it ends: ranks differ in what they know of the step.
            time.sleep(_FENCE_S * (1 + self._chance.random()))
        elif chance < 0.3:
            time.sleep(_STEP_S / 2 * self._chance.random())


class Replay:
    """The weights after each step of a training without faults."""

    def __init__(self) -> None:
        self._training = Training(0)
        self._digests = [""]

    def digest(self, step: int) -> str:
        """Return their hash."""
        while len(self._digests) <= step:
            self._training.loss(len(self._digests)).backward()  # type: ignore[no-untyped-call]
            self._training.optimizer.step()
            self._training.optimizer.zero_grad()
            self._digests.append(self._training.digest())
        return self._digests[step]


class KillRun:
    """Workers and their coordinator; each that is killed is started again, with other weights.

    After each report of a worker it is checked that

    * its weights have the bits of the replay,
    * it has made each step once, and none is missing,
    * no step is lost that any worker has reported as committed, dead or alive, unless all workers were killed: then none
      before the last complete checkpoint.

    Args:
        cluster: Cluster of the test.
        start: Function that starts a trainer.
        engine: Name of the trainers' engine.
        seed: Seed of what is killed, after which step, and after which part of it.
        folder: Folder for checkpoints and the coordinator's state.
        n_workers: Number of workers, a power of two, so that the mean of different gradients is exact.
    """

    def __init__(
        self, cluster: Cluster, start: Start, engine: str, seed: int, folder: Path, n_workers: int = 4
    ) -> None:
        self.n_kills = 0
        self.n_workers = n_workers
        self.kinds: Counter[str] = Counter()
        self._cluster = cluster
        self._start = start
        self._engine = engine
        self._seed = seed
        self._chance = random.Random(seed)
        self._folder = folder
        self._options = ("--world-size", str(self.n_workers), "--state", str(folder / "state"))
        self._coordinator: Coordinator = cluster.coordinator(*self._options)
        self._replay = Replay()
        self._story: deque[str] = deque(maxlen=6)
        # The last step that a worker has reported as committed.
        self._reached = 0
        # By worker: the last step of its present process, None before it has joined; the step that had been reached when
        # it was started.
        self._steps: list[int | None] = [None] * self.n_workers
        self._floors = [0] * self.n_workers
        self._trainers: list[Trainer] = [self._trainer(number, 0) for number in range(self.n_workers)]

    def kill(self, n_kills: int) -> None:
        """Kill until there were so many kills of workers, and end in a step that all workers have committed."""
        self._all_step()
        while self.n_kills < n_kills:
            [kind] = self._chance.choices(list(KINDS), list(KINDS.values()))
            self.kinds[kind] += 1
            self._watch(self._chance.randrange(self.n_workers), self._chance.randrange(1, 7))
            delay_s = self._chance.random() * _STEP_S
            self._note(f"kill {self.n_kills + 1}, {kind}, {1000 * delay_s:.2f} ms after step {self._reached}")
            time.sleep(delay_s)
            self._kill(kind)
        self._all_step()

    # --- What is killed ---

    def _kill(self, kind: str) -> None:
        number = self._chance.randrange(self.n_workers)
        match kind:
            case "one worker":
                self._replace([number])
            case "rank 0":
                # Ranks follow seats.
                self._replace([0])
            case "several workers":
                n_victims = self._chance.randrange(min(2, self.n_workers - 1), self.n_workers)
                self._replace(self._chance.sample(range(self.n_workers), n_victims))
            case "a worker in the join of another":
                self._replace([number])
                self._wait_for_a_part_of_the_join()
                self._replace([self._chance.choice([one for one in range(self.n_workers) if one != number])])
            case "a worker that joins":
                self._replace([number])
                self._wait_for_a_part_of_the_join()
                self._replace([number])
            case "all workers":
                self._replace_all()
            case "the coordinator":
                self._replace_coordinator([])
            case "the coordinator and a worker":
                self._replace_coordinator([number])

    def _replace(self, victims: list[int]) -> None:
        """Kill workers at once, and start others in their places; one that has the weights is left, if there is one."""
        self._read_all()
        left = [step for number, step in enumerate(self._steps) if number not in victims]
        if all(step is None for step in left):
            # All that have the weights would be gone, and the steps after the checkpoint with them.
            self._all_step()
        self._end(victims)
        self._begin(victims)

    def _replace_all(self) -> None:
        # A checkpoint that was complete before the kills is not lost.
        step = self._coordinator.status(lambda status: status.checkpoint).checkpoint.step
        everyone = list(range(self.n_workers))
        self._end(everyone)
        self._reached = step
        self._begin(everyone)
        self._all_join()

    def _replace_coordinator(self, victims: list[int]) -> None:
        self._coordinator.signal(signal.SIGKILL)
        self._end(victims)
        self._coordinator.kill()
        time.sleep(self._chance.random() * _JOIN_S)
        self._coordinator = self._cluster.coordinator(*self._options, listen=self._coordinator.address)
        self._begin(victims)

    def _end(self, victims: list[int]) -> None:
        for number in victims:
            os.kill(self._trainers[number].process.pid, signal.SIGKILL)
        for number in victims:
            self._trainers[number].kill()
            for event in self._trainers[number].events(waits=False):
                if event != "it has ended":
                    self._check(number, event)
        self.n_kills += len(victims)

    def _begin(self, victims: list[int]) -> None:
        for number in victims:
            self._steps[number], self._floors[number] = None, self._reached
            self._trainers[number] = self._trainer(number, 1 + self.n_kills)

    def _trainer(self, number: int, model_seed: int) -> Trainer:
        return self._start(
            self._coordinator,
            number,
            engine=Jittered(self._engine, number, self.n_workers, self._chance.randrange(2**32)),
            n_steps=_ENDLESS,
            model_seed=model_seed,
            ranks_differ=True,
            folder=str(self._folder),
        )

    def _wait_for_a_part_of_the_join(self) -> None:
        time.sleep(self._chance.random() * _JOIN_S)

    # --- What workers report ---

    def _watch(self, number: int, n_steps: int) -> None:
        """Wait until a worker has committed so many steps after those that are known of."""
        self._read_all()
        until = self._reached + n_steps
        while (self._steps[number] or 0) < until:
            self._read(number, waits=True)

    def _all_join(self) -> None:
        for number in range(self.n_workers):
            while self._steps[number] is None:
                self._read(number, waits=True)

    def _all_step(self) -> None:
        self._read_all()
        until = self._reached + 1
        for number in range(self.n_workers):
            while (self._steps[number] or 0) < until:
                self._read(number, waits=True)

    def _read_all(self) -> None:
        for number in range(self.n_workers):
            self._read(number, waits=False)

    def _read(self, number: int, *, waits: bool) -> None:
        try:
            events = self._trainers[number].events(waits=waits)
        except queue.Empty:
            raise AssertionError(self._told(f"worker {number} reports nothing")) from None
        for event in events:
            self._check(number, event)

    def _check(self, number: int, event: Any) -> None:
        assert isinstance(event, dict), self._told(f"worker {number}: {event}")
        match event["event"]:
            case "started":
                pass
            case "joined":
                assert event["size"] == self.n_workers
                committed, floor = event["committed"], self._floors[number]
                assert committed >= floor, self._told(
                    f"worker {number} joins with step {committed}, and step {floor} was committed"
                )
                self._steps[number] = committed
                self._reached = max(self._reached, committed)
            case "step" if event["is_committed"]:
                last, step = self._steps[number], event["number"]
                assert last is not None
                assert step == last + 1, self._told(f"worker {number} made step {step} after step {last}")
                assert event["digest"] == self._replay.digest(step), self._told(
                    f"worker {number} has other weights after step {step} than the replay"
                )
                self._steps[number] = step
                self._reached = max(self._reached, step)
            case "step":
                pass
            case _:
                raise AssertionError(self._told(f"worker {number}: {event}"))

    # --- What is said if a check fails ---

    def _note(self, text: str) -> None:
        self._story.append(text)

    def _told(self, text: str) -> str:
        return "\n".join([f"engine {self._engine}, seed {self._seed}: {text}", *self._story])
