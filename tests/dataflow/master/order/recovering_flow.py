"""A flow in virtual time of which workers without training state die and join again, with values that know their origin."""

from __future__ import annotations

from collections import Counter

from simulated_flow import STRAGGLER, Worker, World

from softs_fast.dataflow.declare.plan import FlowPlan, FunctionPlan
from softs_fast.dataflow.master.order.steps import CallState, Kind, Output, Step
from softs_fast.dataflow.master.rows.records import Group

#: An instance of a column of a row: its number, and where it is: worker and life of the worker.
Instance = tuple[int, int, int]
HERE = -1


class RecoveringWorld(World):
    """See `World`; here workers of which no function trains are started again.

    A hook does not wait for a participant that has died, because none waits for those that only receive weights. Values
    are where the main part of a function has run. An order names instances, as messages name places; a worker
    that gets to it reads them all or fails, and only then is inside of the function.

    Args:
        see `World`.
        leaves: chance that a replica of a pool which dies does not join again, if another one of its pool will be left.
    """

    def __init__(
        self,
        seed: int,
        plan: FlowPlan,
        n_groups: int,
        *,
        deaths: tuple[int, ...] = (),
        drops: float = 0.0,
        leaves: float = 0.0,
    ) -> None:
        super().__init__(seed, plan, n_groups, deaths=deaths, drops=drops)
        self.leaves = leaves
        self.gone: set[int] = set()
        self.functions = {one.name: one for one in plan.functions}
        training = {worker for one in plan.functions if one.is_strict for worker in one.workers}
        self.mortal = [number for number in self.workers if number >= 0 and number not in training]
        # Lives of workers, as far as the master knows, and in truth.
        self.lives: Counter[int] = Counter()
        self.begun: Counter[int] = Counter()
        self.values: dict[tuple[int, str], Instance] = {}
        # Of each instance, the instances of all columns that it was made from.
        self.origins: dict[int, dict[str, int]] = {}
        self.n_instances = 0
        self.reads: dict[int, dict[tuple[int, str], Instance]] = {}
        self.unread: set[int] = set()
        self.made_from: dict[int, dict[int, dict[str, int]]] = {}
        self.restores: dict[int, int] = {}
        self.sent_lives: dict[int, dict[int, int]] = {}
        self.trained: dict[str, list[int]] = {one.name: [] for one in plan.functions if one.is_strict}
        # What training functions have read of each row, and first rows of groups that functions went without.
        self.learned: dict[int, dict[str, int]] = {}
        self.left_out: dict[str, set[int]] = {one.name: set() for one in plan.functions}
        self.n_lost = 0
        self.n_restored = 0
        rows, remove = self.master.rows, self.master.rows._remove

        def removing(group: Group) -> None:
            for queue in rows._queues:
                if group.without & queue.bit:
                    self.left_out[queue.plan.name].add(group.ids[0])
            remove(group)

        rows._remove = removing  # type: ignore[method-assign]

    # --- Deaths ---

    def kill(self, number: int) -> None:
        """End a worker of which no function trains, and start it again a while after the master knows."""
        if number not in self.mortal:
            number = self.random.choice(self.mortal) if self.mortal else HERE
        worker = self.workers[number]
        if number == HERE or not worker.is_alive:
            return
        worker.is_alive = False
        self.n_lost += 1
        self.begun[number] += 1
        self.later(0.0, self.meet)
        late = [one.ticket for one in self.master.order.tickets if number in one.missing]

        def learn() -> None:
            self.master.lose(number, f"worker {number} died")
            self.lives[number] += 1
            if self.leaves and self.is_spare(number) and self.random.random() < self.leaves:
                self.gone.add(number)
                return
            self.later(self.random.random() * 8, lambda: self.join(number, late))

        self.to_master(worker, learn)

    def is_spare(self, number: int) -> bool:
        own = [one for one in self.plan.functions if number in one.workers]
        return all(one.is_pool and set(one.workers) - self.gone - {number} for one in own)

    def present(self) -> list[int]:
        """As `World.present`; nothing is posted to a replica that has gone for good."""
        return sorted(set(self.workers) - self.gone)

    def join(self, number: int, late: list[int]) -> None:
        """A new process joins; what the old one has sent about its tickets arrives now, too."""
        self.workers[number] = Worker(number)
        self.master.order.join(number)
        for ticket in late:
            self.master.order.report(number, ticket, "late")
        self.restore(number)
        self.act()

    def restore(self, number: int) -> None:
        """Post what brings weights to a worker: it, and one that cannot die, have a part in it."""
        immortal = [one for one in self.workers if one not in self.mortal]
        step = self.step(Kind.MAIN, frozenset({number, self.random.choice(immortal)}))
        call = self.master.post_steps("restore", (step,), self.now_s, restores=True)
        self.calls[call] = ("restore", None)
        self.restores[call] = number
        self.master.order.flush([call])

    # --- What workers do ---

    def say(self, output: Output) -> None:
        if isinstance(output, CallState):
            number = self.restores.pop(output.number, None)
            if number is not None and output.reason is None:
                self.n_restored += 1
                self.master.order.restored(number)
                self.later(0.0, self.act)
            name, taken = self.calls.get(output.number, ("", None))
            if output.reason is None and name in self.trained and taken is not None:
                assert self.restored_workers(self.functions[name])
        elif isinstance(output[1], Step):
            self.name_values(output[1])
        super().say(output)

    def restored_workers(self, function: FunctionPlan) -> bool:
        return all(worker not in self.mortal for worker in function.workers)

    def name_values(self, order: Step) -> None:
        """Fix the lives of participants, and the instances that a main part reads, when its order is sent."""
        self.sent_lives.setdefault(order.ticket, {one: self.lives[one] for one in order.workers})
        state = self.master.calls.get(order.call)
        if order.kind is not Kind.MAIN or state is None or state.taken is None or order.ticket in self.reads:
            return
        assert state.function is not None
        for worker in order.workers:
            assert worker not in self.master.order.away, "a ticket before the worker is restored"
        rows = [row for row in state.taken.ids if row in self.master.rows]
        for key in state.function.inputs:
            assert self.master.held.places(rows, key) == [self.values[row, key] for row in rows]
        self.reads[order.ticket] = {
            (row, key): self.values[row, key] for row in rows for key in state.function.inputs
        }

    def waited(self, order: Step) -> list[Worker]:
        """Workers that a step waits for."""
        lives = self.sent_lives[order.ticket]
        return [
            self.workers[number]
            for number in sorted(order.workers)
            if order.kind is Kind.MAIN or self.begun[number] == lives[number]
        ]

    def enter(self, worker: Worker) -> None:
        order = worker.executor.enter() if worker.is_alive else None
        if order is not None:
            worker.entered.append(order.ticket)
            self.begin(order)

    def begin(self, order: Step) -> None:
        """A step goes on when all are inside that it waits for."""
        if not all(one.is_alive and one.executor.inside is order for one in self.waited(order)):
            return
        if order.ticket in self.reads and order.ticket not in self.made_from:
            self.read(order)
        late = STRAGGLER if self.random.random() < 0.05 else 1.0
        self.later(self.random.random() * late, lambda: self.finish(order))

    def meet(self) -> None:
        """Hooks go on that a dead worker had a part in."""
        inside = {one.executor.inside for one in self.workers.values() if one.is_alive}
        for order in sorted((one for one in inside if one is not None), key=lambda one: one.ticket):
            if order.kind is not Kind.MAIN:
                self.begin(order)

    def read(self, order: Step) -> None:
        """All participants are there: all values are read, or none."""
        wanted = self.reads[order.ticket]
        there = all(
            self.lives[holder] == life
            and (holder == HERE or self.workers[holder].is_alive)
            # What was made again is in the place of what was there, if it is of the same process.
            and (
                row not in self.master.rows
                or self.values[row, key] == found
                or self.values[row, key][1:] != found[1:]
            )
            for (row, key), found in wanted.items()
            for _, holder, life in [found]
        )
        if not there:
            self.unread.add(order.ticket)
            return
        origins: dict[int, dict[str, int]] = {}
        for (row, key), (instance, _, _) in wanted.items():
            origin = origins.setdefault(row, {})
            for column, made in (*self.origins[instance].items(), (key, instance)):
                assert origin.setdefault(column, made) == made, f"columns of row {row} do not belong together"
        self.made_from[order.ticket] = origins

    def finish(self, order: Step) -> None:
        """As `World.finish`; a main part that could not read has failed before its function."""
        present = [one for one in self.waited(order) if one.is_alive and one.executor.inside is order]
        if not present or len(present) < len(self.waited(order)):
            return
        if order.kind is Kind.MAIN and order.ticket not in self.unread:
            self.write(order)
        for worker in present:
            ticket = worker.executor.leave().ticket
            if order.ticket in self.unread:
                number = worker.number
                self.to_master(worker, lambda number=number: self.report_unread(number, order))
            else:
                self.report(worker, ticket, None)
        for worker in present:
            self.enter(worker)

    def report_unread(self, number: int, order: Step) -> None:
        self.master.unread(order.call)
        self.master.order.report(number, order.ticket, "unread")

    def write(self, order: Step) -> None:
        """Values get a new instance where the function has run."""
        state = self.master.calls.get(order.call)
        if state is None or state.function is None or state.taken is None:
            return
        function, worker = state.function, min(order.workers)
        if function.is_strict:
            assert order.ticket in self.made_from
            self.trained[function.name] += [row for row in state.taken.ids if row % self.plan.group == 0]
            for row, origin in self.made_from[order.ticket].items():
                learned = self.learned.setdefault(row, {})
                for column, made in origin.items():
                    assert learned.setdefault(column, made) == made, (
                        f"row {row} was trained with as another one, too"
                    )
        for row in self.master.rows.current(function.name, state.taken):
            for key in function.outputs:
                self.n_instances += 1
                self.values[row, key] = (self.n_instances, worker, self.lives[worker])
                self.origins[self.n_instances] = self.made_from[order.ticket].get(row, {})
        version = self.master.rows.counts["train"].complete if function.outputs else None
        ids = state.taken.ids
        places = {key: [self.values.get((row, key)) for row in ids] for key in function.outputs}
        self.master.wrote(order.call, worker, ids, places, n_bytes=1, version=version)
        self.maybe_drop(ids)

    def maybe_drop(self, ids: tuple[int, ...]) -> None:
        if self.random.random() >= self.drops:
            return
        row = self.random.choice(ids)
        if row not in self.master.rows:
            return
        try:
            self.master.rows.drop([row], "filtered")
        except ValueError:
            return  # training has used it
        size = self.plan.group
        self.dropped |= {row // size * size + i for i in range(size)}

    def admit(self, partition: str) -> tuple[int, ...]:
        """As `World.admit`; rows of the source are here, where nothing dies."""
        ids = super().admit(partition)
        for key in self.plan.source[partition]:
            for row in ids:
                self.n_instances += 1
                self.values[row, key] = (self.n_instances, HERE, 0)
                self.origins[self.n_instances] = {}
            self.master.held.put(ids, {key: [self.values[row, key] for row in ids]}, HERE)
        return ids
