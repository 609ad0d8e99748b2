"""Ranks of an elastic job in the simulated fleet: students with a coordinator, of which hosts are lost and cut off.

Coordinator and ranks are the machines of the package, in the world of their tests, which checks each table and each step:
all members have the same weights, and no committed step is lost. Time, hosts and lines are those of the fleet.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simulated_engine import Callback, Engine, Link
from simulated_invariants import Invariants
from simulated_job import Process, World

from benches.fleet_guests import SimulatedFleet
from softs_fast.coordination.job import events
from softs_fast.coordination.job.messages import FromWorker, Table, ToWorker
from softs_fast.coordination.job.options import JobOptions
from softs_fast.coordination.wire.formats import FROM_WORKER, TO_WORKER

#: Samples that a rank takes for a step, and how long it trains on them.
BATCH, TRAIN_S = 64, 0.2
#: What a call of the engine sends of each rank to the first one, and back.
CALL_BYTES = 100_000
PING_BYTES = 100
#: How long the coordinator is busy with each message.
MESSAGE_S = 100e-6
#: Two of eight hosts are lost, then two others are cut off for some time.
LOST_AT_S, CUT_AT_S, CUT_S, END_S = 10.0, 25.0, 8.0, 45

encoded_from = functools.lru_cache(maxsize=64)(FROM_WORKER.encode)
encoded_to = functools.lru_cache(maxsize=64)(TO_WORKER.encode)


@dataclass
class Epoch:
    """What became of an epoch: its ranks, the last step of the job in it, and when it was opened and made steps, seconds."""

    n_ranks: int
    opened_s: float
    n_steps: int = 0
    first_s: float = 0.0
    last_s: float = 0.0


class Epochs(Invariants):
    """Notes the epochs beside what it checks."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.found: dict[tuple[int, int], Epoch] = {}

    def check_table(self, table: Table) -> None:
        """Check a table that the coordinator opens, and note when."""
        super().check_table(table)
        self.found[table.boot, table.epoch] = Epoch(len(table.members), self.world.now_s)

    def note_committed(self, table: Table, step: int) -> None:
        """Note that a rank has committed a step."""
        super().note_committed(table, step)
        epoch, now_s = self.found[table.boot, table.epoch], self.world.now_s
        epoch.first_s = epoch.first_s or now_s
        # A rank that was cut off commits the last step when it hears that the others have.
        if step > epoch.n_steps:
            epoch.n_steps, epoch.last_s = step, now_s


class Job(World):
    """The job; host 0 has its coordinator."""

    def __init__(self, fleet: SimulatedFleet, seed: int, options: JobOptions, per_host: int) -> None:
        self.fleet, self._per_host = fleet, per_host
        super().__init__(seed, options)
        self.can_follow, self.differ_in = False, 0.0
        self.invariants: Epochs = Epochs(self)
        self._free_s = 0.0
        self._heard_s: dict[int, float] = {}

    @property
    def now_s(self) -> float:
        """The virtual time of the fleet."""
        return self.fleet.now_s

    @now_s.setter
    def now_s(self, value: float) -> None:
        assert value == self.fleet.now_s

    def begin(self, n_ranks: int) -> None:
        """Start all processes, and plan what happens to their hosts."""
        self.start_coordinator()
        for number in range(n_ranks):
            rank = Rank(self, f"w{number}", 1, number)
            self.fleet.at(self.host_of(rank), 0.1, lambda rank=rank: self.start(rank))
        quarter = max(1, n_ranks // self._per_host // 4)
        lost, cut = range(2 * quarter, 3 * quarter), range(3 * quarter, 4 * quarter)
        self.fleet.at(0, LOST_AT_S, lambda: self._lose(lost))
        self.fleet.at(0, CUT_AT_S, lambda: self.fleet.cut(cut, CUT_S))

    def host_of(self, process: Process) -> int:
        """Return the host of a process."""
        return int(process.id[1:]) // self._per_host

    def _lose(self, hosts: range) -> None:
        self.fleet.freeze(hosts)
        for process in self.processes.values():
            if self.host_of(process) in hosts:
                process.stop()

    # --- In place of what the world of the tests has ---

    def later(self, delay_s: float, what: Callable[[], None]) -> None:
        """Have something happen on the host on which something happens now."""
        self.fleet.later(delay_s, what)

    def send_up(self, link: Link, message: FromWorker) -> None:
        """Send a message of a rank."""

        def arrive() -> None:
            if not link.is_cut:
                self._tell_coordinator(events.Received(link.conn, message))

        if link.conn not in self._heard_s:
            self._heard_s[link.conn] = self.now_s
            self.fleet.at(0, self.now_s, lambda: self._ping(link))
        self.fleet.send(0, len(encoded_from(message)), lambda: self._work(arrive))

    def _send_down(self, conn: int, message: ToWorker) -> None:
        link = self.links.get(conn)
        if link is None:
            return

        def arrive() -> None:
            if not link.is_cut:
                link.process.run(lambda: link.process.receive(link, message))

        host, n_bytes = self.host_of(link.process), len(encoded_to(message))
        self._work(lambda: self.fleet.send(host, n_bytes, arrive))

    def _work(self, what: Callable[[], None]) -> None:
        """Have the coordinator do one thing after the other."""
        self._free_s = max(self._free_s, self.now_s) + MESSAGE_S
        self.fleet.at(0, self._free_s, what)

    def _ping(self, link: Link) -> None:
        if link.is_cut:
            return
        if self.now_s - self._heard_s[link.conn] > self.options.lost_after_s:
            self.cut(link)
            return

        def heard() -> None:
            self._heard_s[link.conn] = self.now_s

        answer = functools.partial(self.fleet.send, 0, PING_BYTES, heard)
        self.fleet.send(self.host_of(link.process), PING_BYTES, answer)
        self.fleet.later(self.options.lost_after_s / 2, lambda: self._ping(link))

    def cut(self, link: Link) -> None:
        """End a connection; this host tells both ends."""
        if link.is_cut:
            return
        link.is_cut, job = True, self.job
        self.links.pop(link.conn, None)
        gone = functools.partial(self._tell_coordinator, events.Gone(link.conn))
        self.fleet.send(0, PING_BYTES, lambda: gone() if self.job is job else None)
        disconnected = functools.partial(self._disconnected, link)
        self.fleet.send(self.host_of(link.process), PING_BYTES, lambda: link.process.run(disconnected))

    def engine_of(self, table: Table) -> Engine:
        """Return the engine of an epoch."""
        key = table.boot, table.epoch
        if key not in self._engines:
            self._engines[key] = FleetEngine(self, table)
        return self._engines[key]


class Rank(Process):
    """A rank that takes samples of the fleet in each step."""

    def _step(self) -> None:
        fleet, engine = self.world.fleet, self.engine
        train = functools.partial(fleet.later, TRAIN_S, lambda: self.run(lambda: self._begin(engine)))
        fleet.take(int(self.id[1:]), BATCH, train)


class FleetEngine(Engine):
    """Calls of ranks that meet at the host of the first one."""

    def __init__(self, world: Job, table: Table) -> None:
        super().__init__(world, len(table.members))
        self._fleet = world.fleet
        self._hosts = [world.host_of(world.processes[one.worker_id]) for one in table.members]

    def join(self, rank: int, number: int, value: Any, done: Callback) -> None:
        """Join a call, of which the result crosses the lines, too."""
        host, join = self._hosts[rank], super().join

        def ended(result: list[Any] | None) -> None:
            self._fleet.send(host, CALL_BYTES, lambda: done(result))

        self._fleet.send(self._hosts[0], CALL_BYTES, lambda: join(rank, number, value, ended))


def run(
    hosts: int, suppliers: int, students: int, slots: int, sample_bytes: int, seed: int
) -> dict[str, Any]:
    """Simulate it.

    Returns:
        The report of `fleet_sim`, with `epochs` (see `Epoch`).
    """
    sizes = {"hosts": hosts, "suppliers": suppliers, "students": students, "slots": slots}
    options = JobOptions(
        "job", max(1, students // 4), students, lost_after_s=2.0, form_timeout_s=2.0, join_s=1.0
    )
    with SimulatedFleet("steady", **sizes, sample_bytes=sample_bytes, seed=seed, seconds=END_S) as fleet:
        job = Job(fleet, seed, options, 8)
        report = fleet.run(lambda: job.begin(students))
    job.repeat()
    return {**report, "epochs": list(job.invariants.found.values())}


def table(epochs: list[Epoch]) -> str:
    """Return the epochs as a table of Markdown."""
    head = ("ranks", "table after", "first step", "pause before it", "last step")
    rows, before_s = [head, ("---:",) * len(head)], 0.0
    for epoch in epochs:
        pause = f"{epoch.first_s - before_s:.2f} s" if epoch.first_s and before_s else "-"
        first = f"{epoch.first_s:.2f} s" if epoch.first_s else "-"
        rows.append(
            (
                str(epoch.n_ranks),
                f"{epoch.opened_s:.2f} s",
                first,
                pause,
                f"{epoch.n_steps}, {epoch.last_s:.1f} s",
            )
        )
        before_s = epoch.last_s or before_s
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
