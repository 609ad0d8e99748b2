"""A parameter server and its workers in the simulated fleet: students that train, of which hosts are lost and cut off.

Server and workers are those of the tests of the rounds: the machine of the package, in a world that checks that no push
counts twice and that no worker gets weights which were not committed. Time, hosts and lines are those of the fleet. The
server steps and writes its file in one thread, as the real one does.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from simulated_run import Worker, World

from benches.fleet_guests import SimulatedFleet
from softs_fast.paramserver.rounds import events
from softs_fast.paramserver.rounds.options import RunOptions
from softs_fast.paramserver.rounds.snapshot import Snapshot

PER_HOST = 8
#: Samples that a worker takes for a push, and how long it trains on them.
BATCH, TRAIN_S = 64, 0.2
#: A push, or the weights that a worker gets: 5 M parameters in bfloat16; other messages.
FRAME_BYTES, MESSAGE_BYTES = 10_000_000, 200
#: The state that the server writes after each step: parameters in float32, and two moments of an optimizer.
FILE_BYTES = 60_000_000
#: Bytes per second: of a disk with its syncs, of hashing a frame that arrives, and of adding one up.
DISKS = {"1 GB/s": 1e9, "50 MB/s": 5e7}
HASH_BYTES_S, STEP_BYTES_S = 1.37e9, 2e9
#: A worker without an answer asks again after this time, and a server that was killed serves again.
RETRY_S, RESTART_S = 2.0, 1.5
#: Two of eight hosts are lost, then two others are cut off, then the server is killed.
LOST_AT_S, CUT_AT_S, CUT_S, KILLED_AT_S, END_S = 12.0, 24.0, 8.0, 40.0, 50
PHASES = (
    ("all serve", 2.0),
    ("two hosts are lost", LOST_AT_S),
    ("two others are cut off for 8 s", CUT_AT_S),
    ("the server is killed", KILLED_AT_S),
)


@dataclass(frozen=True)
class Step:
    """A version: when it was committed, seconds, and how many pushes are in it."""

    at_s: float
    n_pushes: int


class Rounds(World):
    """The server on host 0, and the workers."""

    def __init__(self, fleet: SimulatedFleet, seed: int, options: RunOptions, disk_bytes_s: float) -> None:
        self.fleet, self._disk_bytes_s = fleet, disk_bytes_s
        super().__init__(seed, options)
        self.steps: list[Step] = []
        #: When the thread of the server is free that steps and writes, and the one that hashes.
        self._step_free_s = self._hash_free_s = 0.0
        self._n_pushes = 0
        #: Workers that wait for weights newer than theirs.
        self._held: dict[Worker, tuple[events.Pull, Callable[[Any], None]]] = {}

    @property
    def now_s(self) -> float:
        """The virtual time of the fleet."""
        return self.fleet.now_s

    @now_s.setter
    def now_s(self, value: float) -> None:
        assert value == self.fleet.now_s

    def begin(self) -> None:
        """Start all processes, and plan what happens to their hosts."""
        self.start_server()
        self.workers = [Trainer(self, line) for line in range(self.options.world_size)]
        for worker in self.workers:
            self.fleet.at(host_of(worker), 0.1, worker.start)
        quarter = self.options.world_size // PER_HOST // 4
        lost, cut = range(2 * quarter, 3 * quarter), range(3 * quarter, 4 * quarter)
        self.fleet.at(0, LOST_AT_S, lambda: self._lose(lost))
        self.fleet.at(0, CUT_AT_S, lambda: self.fleet.cut(cut, CUT_S))
        self.fleet.at(0, KILLED_AT_S, self.crash_server)

    def _lose(self, hosts: range) -> None:
        self.fleet.freeze(hosts)
        for worker in self.workers:
            worker.is_alive &= host_of(worker) not in hosts

    # --- In place of what the world of the tests has ---

    def later(self, delay_s: float, what: Callable[[], None]) -> None:
        """Have something happen on the host on which something happens now."""
        self.fleet.later(delay_s, what)

    def patience(self) -> float:
        """Return how long a worker waits for an answer before it asks again, seconds."""
        return RETRY_S

    def crash_server(self) -> None:
        """Kill the server, which starts again with the last file that it has written."""
        self.repeat()
        self.run, self.n_crashes = None, self.n_crashes + 1
        self._contents.clear()
        self._held.clear()
        self._step_free_s = self._hash_free_s = 0.0
        self.later(RESTART_S, self.start_server)

    def tell(self, event: events.Event) -> Any:
        """Give an event to the server, and weights to all that wait for them; the answer."""
        answer = super().tell(event)
        if isinstance(event, events.Applied):
            self.steps.append(Step(self.now_s, self._n_pushes))
            held, self._held = self._held, {}
            for worker, (pull, then) in held.items():
                self._arrive(worker, replace(pull, is_again=True), then)
        return answer

    def step_time(self, n_gradients: int) -> float:
        """Return how long the step takes that begins now: after the file before it."""
        self._n_pushes = n_gradients
        self._step_free_s = max(self._step_free_s, self.now_s) + n_gradients * FRAME_BYTES / STEP_BYTES_S
        return self._step_free_s - self.now_s

    def save(self, snapshot: Snapshot) -> None:
        """Write the file of the server, which counts once all of it is on the disk."""
        run, model = self.run, self.model

        def written() -> None:
            if self.run is run:
                self.file = (snapshot, model)

        self._step_free_s = max(self._step_free_s, self.now_s) + FILE_BYTES / self._disk_bytes_s
        self.later(self._step_free_s - self.now_s, written)

    def request(self, worker: Worker, event: events.Event, then: Callable[[Any], None]) -> None:
        """Send what a worker asks."""
        is_push = isinstance(event, events.Push)

        def arrive() -> None:
            if not is_push:
                self._arrive(worker, event, then)
                return
            self._hash_free_s = max(self._hash_free_s, self.now_s) + FRAME_BYTES / HASH_BYTES_S
            self.later(self._hash_free_s - self.now_s, lambda: self._arrive(worker, event, then))

        self.fleet.send(0, FRAME_BYTES if is_push else MESSAGE_BYTES, arrive)

    def _answer(self, worker: Worker, event: events.Event, answer: Any, then: Callable[[Any], None]) -> None:
        if isinstance(answer, events.Hold):
            assert isinstance(event, events.Pull)
            self._held[worker] = event, then
        elif answer is not None:
            n_bytes = FRAME_BYTES if isinstance(answer, events.Serve) else MESSAGE_BYTES
            self.fleet.send(host_of(worker), n_bytes, lambda: worker.run(lambda: then(answer)))


class Trainer(Worker):
    """A worker that takes samples of the fleet for each push."""

    world: Rounds

    def _train(self, done: Callable[[], None]) -> None:
        fleet = self.world.fleet
        fleet.take(self.line, BATCH, lambda: fleet.later(TRAIN_S, done))


def host_of(worker: Worker) -> int:
    """Return the host of a worker."""
    return worker.line // PER_HOST


def run(students: int, **sizes: int) -> list[dict[str, Any]]:
    """Simulate it with each of the disks.

    Returns:
        The reports of `fleet_sim`, with `disk` and `steps` (see `Step`).
    """
    found = []
    options = RunOptions(students, 1 << 20, lost_after_s=5.0)
    for name, disk_bytes_s in DISKS.items():
        with SimulatedFleet("steady", students=students, seconds=END_S, **sizes) as fleet:
            rounds = Rounds(fleet, sizes["seed"], options, disk_bytes_s)
            report = fleet.run(rounds.begin)
        rounds.check_end()
        found.append({**report, "disk": name, "steps": rounds.steps})
    return found


def table(runs: list[dict[str, Any]]) -> str:
    """Return what became of the rounds, as a table of Markdown."""
    head = ("disk", "since", "rounds", "time of a round", "pushes in a round", "longest pause")
    rows = [head, ("---", "---") + ("---:",) * (len(head) - 2)]
    for run in runs:
        for (name, since_s), (_, until_s) in zip(PHASES, [*PHASES[1:], ("", float(END_S))], strict=True):
            steps = [step for step in run["steps"] if since_s <= step.at_s < until_s]
            times = [since_s, *(step.at_s for step in steps), until_s]
            took = [after - before for before, after in itertools.pairwise(times)]
            n_pushes = statistics.median(step.n_pushes for step in steps) if steps else 0
            rows.append((
                run["disk"], name, str(len(steps)), f"{statistics.median(took):.2f} s", f"{n_pushes:.0f}", f"{max(took):.2f} s",
            ))  # fmt: skip
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
