"""A job in virtual time: the coordinator, its workers and their engine, with everything that can happen to them.

Both sides are the machines of the package. Messages take random times, in order on each connection; connections are
cut, processes killed, stopped and started again, and the coordinator too, with or without its state file. The engine is
a model of an engine: a call ends at some members, and fails or hangs at others, if one of them is lost meanwhile.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from itertools import count
from typing import Any

from simulated_engine import Callback, Engine, Link, apply
from simulated_following import Copies, Stream
from simulated_invariants import Invariants

from softs_fast.coordination.job import events
from softs_fast.coordination.job.events import Completed, Received
from softs_fast.coordination.job.job import Job
from softs_fast.coordination.job.messages import FromWorker, Hello, Table, ToWorker, WorkerState
from softs_fast.coordination.job.options import JobOptions
from softs_fast.coordination.job.participant import Build, EndEngine, GiveUp, Participant, Say


class Process:
    """A worker's process: its machine, weights and engine."""

    def __init__(
        self,
        world: World,
        worker_id: str,
        incarnation: int,
        seat: int | None,
        state: WorkerState | None = None,
        weights: Any = None,
    ) -> None:
        self.world = world
        self.id, self.wanted = worker_id, seat
        self.machine = Participant(
            Hello(
                world.options.name,
                worker_id,
                incarnation,
                seat,
                f"host:{worker_id}",
                state or WorkerState(),
                can_follow=world.can_follow,
            )
        )
        self.copies = Copies(self)
        self.incarnation = incarnation
        self.weights: Any = weights or ("new", worker_id, incarnation)
        self.held: Any = None
        self.link: Link | None = None
        self.engine: Engine | None = None
        self.rank = self.n_calls = 0
        self.is_alive, self.is_stopped = True, False
        self.is_over = False
        #: Whether the next step cannot be applied.
        self.fails_to_apply = False
        #: How long the end of an engine takes, at most: calls may have to end first, such as those that apply a step.
        self.end_s = 0.03
        self._deferred: list[Callable[[], None]] = []

    # --- What the world does to it ---

    def run(self, what: Callable[[], None]) -> None:
        """Run something in this process, unless it is dead; later, if it is stopped."""
        if not self.is_alive:
            return
        if self.is_stopped:
            self._deferred.append(what)
        else:
            what()

    def stop(self) -> None:
        self.is_stopped = True

    def resume(self) -> None:
        self.is_stopped = False
        deferred, self._deferred = self._deferred, []
        for what in deferred:
            self.run(what)

    def kill(self) -> None:
        self.is_alive = False
        if self.link is not None:
            self.world.cut(self.link)
        self.copies.kill()
        if self.engine is not None:
            self.engine.leave(self.rank)

    def act(self, actions: list[Any]) -> None:
        for action in actions:
            self.copies.act(action)
            match action:
                case Say(message):
                    if self.link is not None:
                        self.world.send_up(self.link, message)
                case Build(table, rank, duty):
                    self._build(table, rank, duty)
                case EndEngine():
                    self.world.later(self.world.delay(self.end_s), lambda: self.run(self._drop_engine))
                case GiveUp(refused):
                    self.is_over = refused.code != "full"
                    if self.is_over and self.engine is None:
                        self.world.later(0.0, self.kill)

    def receive(self, link: Link, message: ToWorker) -> None:
        if link is self.link:
            self.act(self.machine.receive(message))

    # --- The engine and the steps ---

    def _build(self, table: Table, rank: int, duty: str) -> None:
        engine = self.world.engine_of(table)
        self.engine, self.rank, self.n_calls = engine, rank, 0
        assert rank not in table.followers or self.machine.followed_step == table.resume_step
        if duty in ("keep", "apply") and self.machine.state.is_lost:
            self.act(self.machine.fail("overwritten")) if table.resume_step else self.kill()
            return
        if duty == "apply":
            assert self.held is not None
            self.weights = apply(self.weights, table.resume_step, self.held)
            self.machine.applied()
        elif duty == "load":
            self.weights = self.world.saved[table.checkpoint][1]
        own = self.weights if rank == table.source_rank or duty == "load" else None

        def copied(result: list[Any] | None) -> None:
            if result is None:
                self.act(self.machine.fail("copying failed"))
                return
            if self.machine.phase != "building":
                return
            source = result[table.source_rank or 0]
            if duty == "copy" and rank not in table.followers:
                self.weights = source
            assert self.weights == source or rank in table.followers, (
                "a survivor has other weights than the source"
            )
            self.held = None
            self.machine.prepared()
            self._call(self.weights, lambda result: self._compared(table, result))

        self._call(own, copied)

    def _compared(self, table: Table, result: list[Any] | None) -> None:
        if result is None or len({result[rank] for rank in (*table.followers, table.source_rank or 0)}) > 1:
            self.act(self.machine.fail("comparing weights failed"))
            return
        if self.machine.phase != "member":
            return
        self.machine.verified()
        self.world.invariants.check_weights(table, table.resume_step, self.weights)
        self._step()

    def _call(self, value: Any, done: Callback) -> None:
        engine, number = self.engine, self.n_calls
        self.n_calls += 1
        assert engine is not None

        def ended(result: list[Any] | None) -> None:
            assert self.engine is engine, "a call has ended after its engine was dropped"
            done(result)

        engine.join(
            self.rank,
            number,
            value,
            lambda result: self.run(lambda: ended(result) if self.engine is engine else None),
        )

    def _step(self) -> None:
        engine = self.engine
        self.world.later(self.world.delay(0.05), lambda: self.run(lambda: self._begin(engine)))

    def _begin(self, engine: Engine | None) -> None:
        if self.machine.phase != "member" or self.machine.is_resting or self.engine is not engine:
            return
        self.act(self.machine.begin())
        self.copies.begin()
        step = self.machine.state.committed + 1
        self._call((self.id, step), lambda result: self._reduced(step, result))

    def _reduced(self, step: int, result: list[Any] | None) -> None:
        if result is None:
            self.act(self.machine.fail("reducing failed"))
            return
        if self.machine.phase != "member":
            return
        self.held = tuple(result)
        self.machine.reduced()
        self._call(self.machine.wants_end, lambda flags: self._passed(step, flags))

    def _passed(self, step: int, flags: list[Any] | None) -> None:
        if flags is None:
            self.act(self.machine.fail("the barrier failed"))
            return
        if self.machine.phase != "member":
            return
        table = self.machine.table
        assert table is not None
        assert self.machine.state.committed == step - 1
        self.copies.commit(step, is_last=any(flags))
        self.weights = None if self.fails_to_apply else apply(self.weights, step, self.held)
        self.held = None
        actions = self.machine.passed(is_last=any(flags))
        assert self.machine.state.committed == step
        if self.fails_to_apply:
            self.fails_to_apply = False
            self.machine.state = WorkerState(table.boot)
            self.act(actions or self.machine.fail("the step cannot be applied"))
            return
        self.world.invariants.check_weights(table, step, self.weights)
        self.world.invariants.note_committed(table, step)
        if step % 7 == 0 and self.machine.phase == "member":
            path = f"step-{step}-of-{table.boot}-{table.epoch}"
            self.act(self.machine.begin_checkpoint(path))
            self.world.writing[path] = self.weights
            self.world.later(
                self.world.delay(0.1),
                lambda: self.run(lambda: self.act(self.machine.end_checkpoint(table.epoch, step, path))),
            )
        self.act(actions)
        self._step()

    def _drop_engine(self) -> None:
        if self.engine is not None:
            self.engine.leave(self.rank)
        self.engine = None
        self.act(self.machine.ended())
        if self.is_over:
            self.kill()


class World:
    """All processes of a job, and the time."""

    def __init__(self, seed: int, options: JobOptions) -> None:
        self.random = random.Random(seed)
        self.options = options
        self.now_s = 0.0
        #: The latest process of each worker, and all of them by their incarnation too.
        self.processes: dict[str, Process] = {}
        self.started: dict[tuple[str, int], Process] = {}
        self.links: dict[int, Link] = {}
        self.job: Job | None = None
        self.file: list[events.Record] = []
        self.saved: dict[str, tuple[int, Any]] = {}
        self.writing: dict[str, Any] = {}
        self.log: list[str] = []
        #: Events of the present coordinator and what it made of them, to be repeated.
        self.history: list[tuple[float, events.Event, list[events.Output]]] = []
        self.opened: list[Table] = []
        self.began: tuple[int, float, list[events.Record]] = (0, 0.0, [])
        self.crash_at_persist = 0.0
        self.has_file = True
        #: Whether workers copy the state beside steps, and how often one that does has other weights than the members.
        self.can_follow, self.differ_in = self.random.random() < 0.7, self.random.choice([0.0, 0.0, 0.02])
        self.streams: dict[tuple[int, int, int], Stream] = {}
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()
        self._conns = count(1)
        self._engines: dict[tuple[int, int], Engine] = {}
        self.invariants = Invariants(self)

    # --- Time ---

    def later(self, delay_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now_s + delay_s, next(self._number), what))

    def delay(self, longest_s: float) -> float:
        return self.random.random() ** 2 * longest_s

    def run_until(self, end_s: float) -> None:
        while self._queue and self._queue[0][0] <= end_s:
            self.now_s, _, what = heapq.heappop(self._queue)
            what()
        self.now_s = end_s

    # --- The coordinator ---

    def start_coordinator(self) -> None:
        boot = self.random.getrandbits(53) | 1
        records = list(self.file) if self.has_file else []
        self.began, self.history, self.opened = (boot, self.now_s, records), [], []
        self.job = Job(self.options, boot, self.now_s, records)
        self._tell_coordinator(events.Tick())

    def crash_coordinator(self, *, n_lost: int = 0) -> None:
        """End the coordinator; perhaps its file is restored from an older copy."""
        self.repeat()
        del self.file[len(self.file) - n_lost :]
        self.job = None
        for link in list(self.links.values()):
            self.cut(link)

    def repeat(self) -> None:
        """I8: another machine makes the same of the same events."""
        boot, began_s, records = self.began
        again = Job(self.options, boot, began_s, records)
        for now_s, event, outputs in self.history:
            assert again.handle(now_s, event) == outputs

    def admin(self, event: events.Event) -> None:
        if self.job is not None:
            self._tell_coordinator(event)

    def _tell_coordinator(self, event: events.Event) -> None:
        job = self.job
        if job is None:
            return
        outputs = list(job.handle(self.now_s, event))
        self.history.append((self.now_s, event, outputs))
        for output in outputs:
            match output:
                case events.Send(conn, message):
                    self._send_down(conn, message)
                case events.Close(conn):
                    if conn in self.links:
                        self._close(self.links[conn])
                case events.Persist(record):
                    is_lost = self.random.random() < self.crash_at_persist
                    if is_lost and self.random.random() < 0.5:
                        self.crash_coordinator()
                        return
                    self.file.append(record)
                    if isinstance(record, Table):
                        self.invariants.check_table(record)
                        self.opened.append(record)
                    if isinstance(record, Completed):
                        self.saved[record.path] = (record.step, self.writing[record.path])
                    if is_lost:
                        self.crash_coordinator()
                        return
                case events.Log(text):
                    self.log.append(f"{self.now_s:.3f} {text}")
        wake_s = job.next_wake_s()
        if wake_s is not None:
            assert wake_s > self.now_s
            self.later(wake_s - self.now_s, lambda: self._wake(job, wake_s))

    def _wake(self, job: Job, wake_s: float) -> None:
        if self.job is job and job.next_wake_s() == wake_s:
            self._tell_coordinator(events.Tick())

    # --- Connections ---

    def start(self, process: Process) -> None:
        self.processes[process.id] = self.started[process.id, process.incarnation] = process
        self._connect(process)

    def _connect(self, process: Process) -> None:
        if not process.is_alive or process.is_over or process.link is not None:
            return
        if self.job is None or process.is_stopped:
            self.later(0.1, lambda: self._connect(process))
            return
        link = Link(next(self._conns), process)
        process.link = self.links[link.conn] = link
        self.send_up(link, process.machine.connected())

    def send_up(self, link: Link, message: FromWorker) -> None:
        link.up_s = max(link.up_s, self.now_s + self.delay(0.05))

        def arrive() -> None:
            if not link.is_cut:
                self._tell_coordinator(Received(link.conn, message))

        self.later(link.up_s - self.now_s, arrive)

    def _send_down(self, conn: int, message: ToWorker) -> None:
        link = self.links.get(conn)
        if link is None:
            return
        link.down_s = max(link.down_s, self.now_s + self.delay(0.05))

        def arrive() -> None:
            if not link.is_cut:
                link.process.run(lambda: link.process.receive(link, message))

        self.later(link.down_s - self.now_s, arrive)

    def cut(self, link: Link) -> None:
        """End a connection; both ends learn it some time later."""
        if link.is_cut:
            return
        link.is_cut = True
        self.links.pop(link.conn, None)
        job = self.job
        self.later(
            self.delay(0.2),
            lambda: self._tell_coordinator(events.Gone(link.conn)) if self.job is job else None,
        )
        self.later(self.delay(0.2), lambda: link.process.run(lambda: self._disconnected(link)))

    def _close(self, link: Link) -> None:
        """End a connection after what was sent on it."""
        self.later(max(0.0, link.down_s - self.now_s) + 0.001, lambda: self.cut(link))

    def _disconnected(self, link: Link) -> None:
        process = link.process
        if process.link is link:
            process.link = None
            process.act(process.machine.disconnected())
            self.later(self.delay(0.3), lambda: self._connect(process))

    def engine_of(self, table: Table) -> Engine:
        return self._engines.setdefault((table.boot, table.epoch), Engine(self, len(table.members)))
