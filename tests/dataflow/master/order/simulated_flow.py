"""A master and its workers in virtual time: messages take a while, steps meet, workers die."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import count

from softs_fast.dataflow.declare.plan import FlowPlan, FunctionPlan
from softs_fast.dataflow.master.master import Master
from softs_fast.dataflow.master.order.executor import Executor
from softs_fast.dataflow.master.order.steps import Abort, CallState, Kind, Output, Step
from softs_fast.dataflow.master.rows.table import Taken

STRAGGLER = 20.0


class Worker:
    """A process with one executor."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.executor = Executor()
        self.is_alive = True
        self.to_s = 0.0  # messages on a connection keep their order
        self.from_s = 0.0
        self.entered: list[int] = []


def make_columns(master: Master, call: int, worker: int) -> None:
    """A worker makes the columns of a call, if it is open; a place is the id of the row."""
    state = master.calls.get(call)
    if state is not None and state.function is not None and state.taken is not None:
        ids = state.taken.ids
        master.wrote(call, worker, ids, dict.fromkeys(state.function.outputs, ids), n_bytes=1)


class World:
    """A flow that is run to its end.

    Args:
        seed: Seed of all random choices.
        plan: Plan of the flow.
        n_groups: Number of groups of the source.
        deaths: Numbers of the events at which a worker dies.
        failures: Chance that a participant of a main fails.
        drops: Chance that a group is dropped after a main.
    """

    def __init__(
        self,
        seed: int,
        plan: FlowPlan,
        n_groups: int,
        *,
        deaths: tuple[int, ...] = (),
        failures: float = 0.0,
        drops: float = 0.0,
    ) -> None:
        self.random = random.Random(seed)
        self.plan = plan
        numbers = sorted({worker for one in plan.functions for worker in one.workers} | {-1})
        self.workers = {number: Worker(number) for number in numbers}
        self.master = Master(plan, self.steps_of, [number for number in numbers if number >= 0])
        self.left = n_groups
        self.deaths, self.failures, self.drops = set(deaths), failures, drops
        self.now_s = 0.0
        self.n_events = 0
        self.answers: Counter[int] = Counter()
        self.failed: dict[int, str] = {}
        self.calls: dict[int, tuple[str, Taken | None]] = {}
        self.uses: Counter[tuple[str, int]] = Counter()
        self.dropped: set[int] = set()
        self.tickets: dict[int, Step] = {}
        self.epochs: list[list[Step]] = []
        self.inside: dict[int, set[int]] = {}
        self.finished: Counter[int] = Counter()
        self.ages: list[int] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

        advance = self.master.order.advance

        def noting(now_s: float) -> list[Output]:
            outputs = advance(now_s)
            orders = [output[1] for output in outputs if not isinstance(output, CallState)]
            epoch = {order.ticket: order for order in orders if isinstance(order, Step)}
            self.tickets |= epoch
            self.check_late(epoch.values())
            self.epochs.append([epoch[ticket] for ticket in sorted(epoch)])
            return outputs

        self.master.order.advance = noting  # type: ignore[method-assign]

    def check_late(self, epoch: Iterable[Step]) -> None:
        """A worker that only takes part in a hook after a call gets its ticket when the main part has ended."""
        if not any(one.slots > one.groups_per_step for one in self.plan.partitions.values()):
            return
        mains = {one.call: one.workers for one in self.tickets.values() if one.kind is Kind.MAIN}
        running = {one.call for one in self.master.order.tickets if one.kind is Kind.MAIN}
        for order in epoch:
            if order.kind is Kind.POST and not order.workers <= mains[order.call]:
                assert order.call not in running

    def check_nesting(self) -> None:
        """No other call has a step between the first pre-hook of a call and its last step, on the workers of these."""
        orders = [one for _, one in sorted(self.tickets.items()) if one.kind is not Kind.MOVE]
        for call in {one.call for one in orders if one.kind is Kind.PRE}:
            own = [place for place, one in enumerate(orders) if one.call == call]
            within = orders[own[0] : own[-1] + 1]
            workers = frozenset().union(
                *(one.workers for one in within if one.call == call and one.kind is not Kind.POST)
            )
            others = [one for one in within if one.call != call and one.workers & workers]
            assert not others, f"call {call} has within it {others}"

    # --- What happens ---

    def run(self) -> None:
        """Run until nothing happens any more."""
        self.act()
        while self._events:
            self.n_events += 1
            assert self.n_events < 200_000, "it does not end"
            if self.n_events in self.deaths:
                self.kill(self.random.choice(sorted(self.workers)))
            self.now_s, _, event = heappop(self._events)
            event()

    def later(self, delay_s: float, event: Callable[[], None]) -> None:
        self.at(self.now_s + delay_s, event)

    def at(self, time_s: float, event: Callable[[], None]) -> None:
        heappush(self._events, (time_s, next(self._order), event))

    def kill(self, number: int) -> None:
        """End a worker; the master learns it after all that the worker has sent."""
        worker = self.workers[number]
        if worker.is_alive and number >= 0:
            worker.is_alive = False
            self.to_master(worker, lambda: self.master.order.lose(number, f"worker {number} died"))

    def post(self) -> None:
        """Post hooks by hand, and flush them later."""
        names = self.present()
        numbers = []
        for _ in range(self.random.randint(1, 3)):
            steps = tuple(
                self.step(Kind.MAIN, frozenset(self.random.sample(names, self.random.randint(1, len(names)))))
                for _ in range(self.random.randint(1, 2))
            )
            number = self.master.post_steps("hook", steps, self.now_s)
            self.calls[number] = ("hook", None)
            numbers.append(number)

        def flush() -> None:
            parked = {call.number for call in self.master.order.parked}
            self.master.order.flush(number for number in numbers if number in parked)
            self.act()

        self.later(self.random.random() * 5, flush)

    def present(self) -> list[int]:
        """Workers that can take part in what is posted by hand."""
        return sorted(self.workers)

    def act(self) -> None:
        """What a master does after each event."""
        for partition in self.plan.partitions:
            while self.left and self.has_room(partition):
                self.admit(partition)
                self.left -= 1
            if not self.left:
                self.master.end_source(partition)
        self.master.held.drop(self.master.rows.freed())
        outputs = self.master.advance(self.now_s)
        for state in self.master.calls.values():
            if state.number not in self.calls:
                self.calls[state.number] = (state.name, state.taken)
                self.ages.append(state.taken.age if state.taken else 0)
        for output in outputs:
            self.say(output)
        if self.left and any(map(self.has_room, self.plan.partitions)):
            self.act()  # a step was complete, which frees slots

    def has_room(self, partition: str) -> bool:
        return self.master.rows.room(partition) > 0

    def admit(self, partition: str) -> tuple[int, ...]:
        return self.master.admit(partition, n_bytes=1)

    def say(self, output: Output) -> None:
        if isinstance(output, CallState):
            self.answers[output.number] += 1
            # A call may be answered before it ever had a ticket.
            name, taken = self.calls.setdefault(output.number, (output.name, None))
            if output.reason is not None:
                self.failed[output.number] = output.reason
            elif taken is not None:
                self.uses.update((name, row) for row in taken.ids)
            return
        number, message = output
        worker = self.workers[number]
        worker.to_s = max(worker.to_s, self.now_s + self.delay())
        self.at(worker.to_s, lambda: self.hear(worker, message))

    def hear(self, worker: Worker, message: Step | Abort) -> None:
        if not worker.is_alive:
            return
        if isinstance(message, Step):
            assert worker.executor.receive(message)
        else:
            match worker.executor.abort(message):
                case "inside":
                    self.leave(worker, "aborted")
                case "skipped":
                    self.report(worker, message.ticket, "aborted")
        self.enter(worker)

    def enter(self, worker: Worker) -> None:
        order = worker.executor.enter() if worker.is_alive else None
        if order is None:
            return
        worker.entered.append(order.ticket)
        inside = self.inside.setdefault(order.ticket, set())
        inside.add(worker.number)
        if inside == order.workers:
            late = STRAGGLER if self.random.random() < 0.05 else 1.0
            self.later(self.random.random() * late, lambda: self.finish(order))

    def finish(self, order: Step) -> None:
        """All participants have met; if all still live and none was aborted, the step ends."""
        workers = [self.workers[number] for number in sorted(order.workers)]
        present = [w for w in workers if w.is_alive and w.executor.inside is order]
        if len(present) < len(workers):
            return  # the others hang until they are told to return
        self.finished[order.ticket] += 1
        fails = order.kind is Kind.MAIN and self.random.random() < self.failures
        if order.kind is Kind.MAIN and not fails:
            self.write(order)
        for worker in present:
            self.leave(worker, "failed" if fails else None)
        for worker in present:
            self.enter(worker)

    def write(self, order: Step) -> None:
        make_columns(self.master, order.call, 0)
        _, taken = self.calls.get(order.call, ("", None))
        if taken is not None and self.random.random() < self.drops:
            row = self.random.choice(taken.ids)
            if row in self.master.rows:
                try:
                    self.master.rows.drop([row], "filtered")
                except ValueError:
                    return  # training has used it
                size = self.plan.group
                self.dropped |= {row // size * size + i for i in range(size)}

    def leave(self, worker: Worker, reason: str | None) -> None:
        self.report(worker, worker.executor.leave().ticket, reason)

    def report(self, worker: Worker, ticket: int, reason: str | None) -> None:
        self.to_master(worker, lambda: self.master.order.report(worker.number, ticket, reason))

    def to_master(self, worker: Worker, event: Callable[[], None]) -> None:
        worker.from_s = max(worker.from_s, self.now_s + self.delay())

        def arrive() -> None:
            event()
            self.act()

        self.at(worker.from_s, arrive)

    def delay(self) -> float:
        return self.random.random() * 0.2

    # --- Steps ---

    def steps_of(self, function: FunctionPlan, taken: Taken) -> tuple[Step, ...]:
        own = frozenset(function.workers) or frozenset({-1})
        all_workers = sorted(self.workers)

        def some() -> frozenset[int]:
            return own | frozenset(
                self.random.sample(all_workers, self.random.randint(0, min(3, len(all_workers))))
            )

        steps = [self.step(Kind.MOVE, some())] if self.random.random() < 0.5 else []
        steps += [self.step(Kind.PRE, some())] if self.random.random() < 0.3 else []
        steps += [self.step(Kind.MAIN, own)]
        steps += [self.step(Kind.POST, some()) for _ in range(self.random.choice([0, 0, 1, 2]))]
        return tuple(steps)

    def step(self, kind: Kind, workers: frozenset[int]) -> Step:
        return Step(kind, workers, expected_s=self.random.choice([0.1, 1.0, 10.0]))
