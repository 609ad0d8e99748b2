"""A parameter server and its workers in virtual time: messages are lost, doubled and overtaken, processes die at any event."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from driven_run import is_refused

from softs_fast.paramserver.rounds import events
from softs_fast.paramserver.rounds.events import Version
from softs_fast.paramserver.rounds.leases import Range
from softs_fast.paramserver.rounds.options import RunOptions
from softs_fast.paramserver.rounds.run import Run
from softs_fast.paramserver.rounds.snapshot import Snapshot
from softs_fast.paramserver.wire.answers import Code

Position = tuple[int, int]


@dataclass(frozen=True)
class Gradient:
    """What a worker computes once; `line` names the process."""

    number: int
    line: int
    base: Version
    ranges: tuple[Range, ...]
    data: int

    @property
    def positions(self) -> Iterator[Position]:
        for one in self.ranges:
            for position in range(one.start, one.stop):
                yield one.epoch, position


@dataclass
class Model:
    """Weights as a hash of all steps, and what they were trained on."""

    weights: int = 0
    trained: Counter[Position] = field(default_factory=Counter)
    applied: Counter[int] = field(default_factory=Counter)

    def stepped(self, gradients: list[tuple[Gradient, float]], rate_factor: float) -> Model:
        new = Model(self.weights, self.trained.copy(), self.applied.copy())
        for gradient, _ in gradients:
            new.trained.update(gradient.positions)
            new.applied[gradient.number] += 1
        new.weights = hash((self.weights, rate_factor, *((one.number, weight) for one, weight in gradients)))
        return new


class Worker:
    """A process that trains; it asks until it has an answer."""

    def __init__(self, world: World, line: int) -> None:
        self.world, self.line, self.process = world, line, world.new_id()
        self.id: str | None = None
        self.before: str | None = None
        self.is_alive, self.is_over = True, False
        #: Of the whole process, and of what it does apart from heartbeats.
        self.stopped_until_s = self.hung_until_s = 0.0
        self.have: Version | None = None
        self.gradient: Gradient | None = None
        self.ranges: tuple[Range, ...] = ()
        self.n_counted = self.n_leases = 0
        self._attempt = 0

    def start(self) -> None:
        self._join()
        self._beat()

    # --- One request at a time, repeated until there is an answer ---

    def _ask(self, make: Callable[[], events.Event], then: Callable[[Any], None]) -> None:
        """Ask until an answer arrives; what arrives later of earlier attempts is for nothing."""
        self._attempt += 1
        attempt = self._attempt

        def answered(answer: Any) -> None:
            if attempt != self._attempt or not self.is_alive:
                return
            if answer == events.UNKNOWN and self.id is not None:
                self.before, self.id = self.id, None
                self._join()
                return
            self._attempt += 1
            if isinstance(answer, events.Over) or answer == events.BANNED:
                if not self.is_over and isinstance(answer, events.Over) and not answer.is_failure:
                    self._take_last()
                self.is_over = True
                return
            then(answer)

        def send() -> None:
            if attempt != self._attempt or not self.is_alive:
                return
            self.world.request(self, make(), answered)
            self.world.later(self.world.patience(), lambda: self.run(send))

        send()

    def run(self, what: Callable[[], None]) -> None:
        if not self.is_alive:
            return
        until_s = self.stopped_until_s if what == self._beat else max(self.stopped_until_s, self.hung_until_s)
        if until_s > self.world.now_s:
            self.world.later(until_s - self.world.now_s, lambda: self.run(what))
        else:
            what()

    # --- The loop of a worker ---

    def _join(self) -> None:
        before = self.before
        new = self.world.new_id()

        def joined(answer: Any) -> None:
            if is_refused(answer, Code.FULL):
                self.world.later(3.0, lambda: self.run(self._join))
                return
            assert isinstance(answer, events.Welcome), answer
            self.id = new
            if self.gradient is not None:
                self._push()
            else:
                self._pull()

        # The same id for all attempts: the server knows them by the nonce of the worker.
        self._ask(lambda: events.Join(new, f"w{self.line}", before, self.process), joined)

    def _pull(self) -> None:
        def pulled(answer: Any) -> None:
            assert isinstance(answer, events.Serve | events.Hold), answer
            if isinstance(answer, events.Hold):
                self.world.later(self.world.delay(0.5), lambda: self.run(self._pull))
                return
            self.world.check_served(self, answer.version)
            self.have = answer.version
            self._take()

        self._ask(lambda: events.Pull(self.id or "", self.have), pulled)

    def _take_last(self) -> None:
        def pulled(answer: Any) -> None:
            assert isinstance(answer, events.Serve), "a worker never gets the last step"
            self.have = answer.version

        self._ask(lambda: events.Pull(self.id or ""), pulled)

    def _take(self) -> None:
        if not self.world.options.dataset_size:
            self.ranges = ()
            self._compute()
            return

        self.n_leases += 1

        def taken(answer: Any) -> None:
            if is_refused(answer, Code.SPENT):
                self._take()
                return
            if answer == events.Granted(()):
                self.world.later(0.5, lambda: self.run(self._take))
                return
            assert isinstance(answer, events.Granted), answer
            assert len({one.epoch for one in answer.ranges}) == 1
            self.ranges = answer.ranges
            self._compute()

        self._ask(lambda: events.Take(self.id or "", 1 + self.line % 4, self.n_leases), taken)

    def _compute(self) -> None:
        have = self.have
        assert have is not None

        def done() -> None:
            self.gradient = Gradient(next(self.world.numbers), self.line, have, self.ranges, self.n_leases)
            self._push()

        self._train(lambda: self.run(done))

    def _train(self, done: Callable[[], None]) -> None:
        self.world.later(self.world.delay(2.0) + 0.05 * (1 + self.line), done)

    def _push(self) -> None:
        gradient = self.gradient
        assert gradient is not None

        def pushed(answer: Any) -> None:
            self.gradient = None
            match answer:
                case events.Counted():
                    self.n_counted += 1
                    self.world.note_acknowledged(gradient)
                    self._pull()
                case events.Stale(timeline, version):
                    self.world.n_refused += 1
                    if (timeline, version) == self.have:
                        self._take()
                    else:
                        self._pull()
                case _:
                    raise AssertionError(answer)

        def make() -> events.Event:
            content = self.world.keep(gradient)
            samples = sum(one.n for one in gradient.ranges) or 1
            return events.Push(self.id or "", gradient.base, samples, 0.5, content, gradient.data)

        if self.world.random.random() < 0.5:
            self._ask(
                lambda: events.Offer(self.id or "", gradient.base, gradient.data), self._offered(make, pushed)
            )
        else:
            self._ask(make, pushed)

    def _offered(
        self, make: Callable[[], events.Event], pushed: Callable[[Any], None]
    ) -> Callable[[Any], None]:
        def offered(answer: Any) -> None:
            if isinstance(answer, events.Noted):
                self._ask(make, pushed)
            else:
                pushed(answer)

        return offered

    def _beat(self) -> None:
        if not self.is_alive or self.is_over:
            return
        if self.id is not None:
            self.world.request(self, events.Seen(self.id, self._attempt), lambda _: None)
        self.world.later(self.world.options.lost_after_s / 4, lambda: self.run(self._beat))


class World:
    """All processes of a run, and the time."""

    def __init__(self, seed: int, options: RunOptions) -> None:
        self.random = random.Random(seed)
        self.options = options
        self.now_s = 0.0
        self.numbers = count(1)
        self.run: Run | None = None
        self.model = Model()
        self.file: tuple[Snapshot, Model] | None = None
        self.workers: list[Worker] = []
        self.n_refused = self.n_crashes = 0
        self.loss_rate = self.double_rate = self.crash_rate = 0.0
        self.acknowledged: dict[int, Gradient] = {}
        self.ended: tuple[str, bool] | None = None
        #: Weights by version: what any worker is served must be what was committed.
        self.committed: dict[Version, int] = {}
        self.is_calm = True
        self._contents: dict[int, Gradient] = {}
        self._pushed: dict[int, Gradient] = {}
        self._applied_by_line: Counter[int] = Counter()
        self._ids: dict[str, str] = {}
        self._ids_made = count(1)
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()
        self._boot = 0
        self._began: tuple[float, Snapshot | None] = (0.0, None)
        self._history: list[tuple[float, events.Event, list[events.Action]]] = []

    # --- Time ---

    def later(self, delay_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now_s + delay_s, next(self._number), what))

    def delay(self, longest_s: float) -> float:
        return self.random.random() ** 3 * longest_s

    def run_until(self, end_s: float) -> None:
        while self._queue and self._queue[0][0] <= end_s and self.ended is None:
            self.now_s, _, what = heapq.heappop(self._queue)
            what()
        self.now_s = max(self.now_s, end_s)

    # --- The server ---

    def start_server(self) -> None:
        snapshot, model = self.file or (None, Model())
        self.model = model
        self._boot += 1
        self._began, self._history = (self.now_s, snapshot), []
        self.run = Run(self.options, self.now_s, snapshot)
        assert self.run.version.timeline == self._boot
        self.file = (self.run.snapshot(), self.model)
        self.committed[self.run.version] = self.model.weights
        if self.run.is_over:
            # The server before this one died right after it had written its last file.
            self.ended = (self.run.status(self.now_s).waiting_for, False)
            return
        self.tell(events.Start() if self.random.random() < 0.1 else events.Tick())

    def crash_server(self) -> None:
        if self.run is None or self.ended is not None:
            return
        self.repeat()
        self.run, self.n_crashes, self.is_calm = None, self.n_crashes + 1, False
        self._contents.clear()
        self.later(self.delay(5.0), self.start_server)

    def repeat(self) -> None:
        """Another machine makes the same of the same events."""
        again = Run(self.options, *self._began)
        for now_s, event, actions in self._history:
            assert again.handle(now_s, event) == actions

    def tell(self, event: events.Event) -> Any:
        """Give an event to the server; its answer, or None if it died over it."""
        run = self.run
        if run is None or self.ended is not None:
            return None
        pushed = self._contents.get(event.content) if isinstance(event, events.Push) else None
        actions = list(run.handle(self.now_s, event))
        if pushed is not None and isinstance(actions[0], events.Stale):
            assert not self.model.applied[pushed.number], (
                "P1: a push of the weights is refused, and computed again"
            )
        self._history.append((self.now_s, event, actions))
        answer = None
        for action in actions:
            if self.random.random() < self.crash_rate:
                self.crash_server()
                return None
            match action:
                case events.Apply():
                    self._apply(run, action)
                case events.Save(snapshot):
                    assert snapshot.version == run.version.number
                    self.save(snapshot)
                case events.Drop(content):
                    self._contents.pop(content, None)
                case events.Ended(reason, is_failure):
                    self.ended = (reason, is_failure)
                case events.Changed() | events.Log():
                    pass
                case _:
                    assert answer is None, "an event has one answer"
                    answer = action
        if isinstance(event, events.Push) and isinstance(answer, events.Counted) and not answer.again:
            self._pushed[event.content] = self._contents.get(event.content) or self._pushed[event.content]
        wake_s = run.next_wake_s()
        if wake_s is not None:
            self.later(max(0.0, wake_s - self.now_s), lambda: self._wake(run, wake_s))
        return answer

    def _wake(self, run: Run, wake_s: float) -> None:
        if self.run is run and run.next_wake_s() == wake_s:
            self.tell(events.Tick())

    def _apply(self, run: Run, action: events.Apply) -> None:
        gradients = []
        for share in action.shares:
            gradient = self._contents[share.push.content]
            assert gradient.base == share.push.base
            gradients.append((gradient, share.weight))
        if self.options.mode == "bsp":
            assert {one.base for one, _ in gradients} == {action.version}
            assert sum(weight for _, weight in gradients) == action.divisor
        assert action.version == run.version
        assert self.committed[action.version] == self.model.weights

        def done() -> None:
            if self.run is not run:
                return
            is_finite = self.random.random() > 0.02
            # The samples of a step that is not finite count too: they are the cause.
            self.model = self.model.stepped(gradients, action.rate_factor)
            assert max(self.model.applied.values()) == 1, "P1: a push is in two steps"
            assert not self.model.trained or max(self.model.trained.values()) == 1, (
                "P6: a position is trained on twice"
            )
            for gradient, _ in gradients:
                self._applied_by_line[gradient.line] += 1
            version = action.version._replace(number=action.version.number + 1)
            assert version not in self.committed, "P3"
            self.committed[version] = self.model.weights
            if self.random.random() < self.crash_rate:
                self.crash_server()
                return
            self.tell(events.Applied(is_finite))

        self.later(self.step_time(len(gradients)), done)

    def step_time(self, n_gradients: int) -> float:
        """Return how long the step takes that begins now, seconds."""
        return self.delay(0.5)

    def save(self, snapshot: Snapshot) -> None:
        """Write the file of the server."""
        self.file = (snapshot, self.model)

    # --- The network ---

    def patience(self) -> float:
        """Return how long a worker waits for an answer before it asks again, seconds."""
        return 1.0 + self.delay(2.0)

    def new_id(self) -> str:
        return f"id{next(self._ids_made)}"

    def keep(self, gradient: Gradient) -> int:
        content = next(self.numbers)
        self._contents[content] = gradient
        return content

    def request(self, worker: Worker, event: events.Event, then: Callable[[Any], None]) -> None:
        copies = 1 + (self.random.random() < self.double_rate)
        for _ in range(copies):
            if self.random.random() >= self.loss_rate:
                one = event
                if isinstance(event, events.Push):
                    one = replace(event, content=self.keep(self._contents[event.content]))
                self.later(self.delay(1.0), lambda one=one: self._arrive(worker, one, then))  # type: ignore[misc]

    def _arrive(self, worker: Worker, event: events.Event, then: Callable[[Any], None]) -> None:
        if self.run is None:
            return
        if isinstance(event, events.Push) and event.content not in self._contents:
            # The server was started again, and with it went the parts that it had.
            return
        if isinstance(event, events.Join) and self._is_member(event.worker_id):
            # The server knows the nonce, and gives the answer that it gave.
            answer: Any = events.Welcome(0, self.run.version)
        else:
            answer = self.tell(event)
        self._answer(worker, event, answer, then)

    def _answer(self, worker: Worker, event: events.Event, answer: Any, then: Callable[[Any], None]) -> None:
        if answer is not None and self.random.random() >= self.loss_rate:
            self.later(self.delay(1.0), lambda: worker.run(lambda: then(answer)))

    def _is_member(self, worker: str) -> bool:
        assert self.run is not None
        return any(one.worker_id == worker for one in self.run.status(self.now_s).members)

    # --- What must hold ---

    def note_acknowledged(self, gradient: Gradient) -> None:
        self.acknowledged[gradient.number] = gradient

    def check_served(self, worker: Worker, version: Version) -> None:
        assert version in self.committed, "weights that were never committed"

    def check_lead(self, worker: Worker) -> None:
        """P7, where no member ever joined late or was away."""
        for other in self.workers:
            assert self._applied_by_line[other.line] >= worker.n_counted - self.options.max_lead

    def check_end(self) -> None:
        """What holds once the run is over."""
        assert self.run is not None
        self.repeat()
        trained = self.model.trained
        if not self.options.dataset_size:
            return
        newest, ranges = self.run.snapshot().leases
        left = {(one.epoch, position) for one in ranges for position in range(one.start, one.stop)}
        assert not left & set(trained), "P6: a position is done and to do"
        for epoch in range(newest + 1):
            for position in range(self.options.dataset_size):
                assert ((epoch, position) in left) != (trained[epoch, position] == 1), (
                    "P6: a position is lost"
                )
