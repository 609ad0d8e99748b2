"""A flow in virtual time of which the stores of workers hold few bytes: values are put, copied to other nodes, and freed."""

from __future__ import annotations

from collections import Counter

from simulated_flow import World

from softs_fast.dataflow.declare.plan import FlowPlan, FunctionPlan
from softs_fast.dataflow.order.steps import Order
from softs_fast.dataflow.stores.ledger import StoreLedger
from softs_fast.dataflow.stores.oldest import OldestGroups, groups_that_suffice
from softs_fast.dataflow.stores.room import Needs, StoreRoom

HERE = -1
SOURCE = "source"


class StoreFull(AssertionError):
    """A store would hold more than it may."""


class StoredWorld(World):
    """See `World`; here each value is in the store of the first worker of the role that has made it, and has bytes.

    A worker on another node copies its inputs to its store first. What the master frees, a worker drops when the message
    arrives; then, and not before, the memory can be used again. No store ever holds more than the limit.

    Args:
        see `World`.
        share: limit, as a multiple of the least with which a step can end for sure.
        n_nodes: worker w is on node w % n_nodes; the master is on node 0.
        growth: rows have up to so many times the bytes that they have at least.
    """

    def __init__(
        self,
        seed: int,
        plan: FlowPlan,
        n_groups: int,
        *,
        share: float,
        n_nodes: int = 1,
        growth: float = 1.0,
        failures: float = 0.0,
        drops: float = 0.0,
    ) -> None:
        self.n_nodes, self.growth = n_nodes, growth
        self.ledger = StoreLedger()
        self.room = StoreRoom(1, self.ledger, self.needs, self.spare)
        super().__init__(seed, plan, n_groups, failures=failures, drops=drops, room=self.room)
        names = [SOURCE, *(one.name for one in plan.functions if one.outputs)]
        self.least = {name: self.random.choice([0, 1, 5, 20]) for name in names}
        self.largest: dict[str, int] = {}
        self.by_name = {one.name: one for one in plan.functions}
        self.maker = {column: one.name for one in plan.functions for column in one.outputs}
        self.n_oldest = groups_that_suffice(plan)
        most = {name: int(n * growth) for name, n in self.least.items()}
        self.least_limit = max(self.oldest(worker, most) or 0 for worker in self.workers)
        self.room.limit = max(int(self.least_limit * share), 1)
        self.followed = OldestGroups(self.master.rows, self.ledger, self.n_oldest, plan.group)
        self.master.settle = self.settle
        #: What stores really hold, by worker, row and what has made it.
        self.stores: dict[int, dict[int, dict[str, int]]] = {worker: {} for worker in self.workers}
        #: Bytes of each value, by row and what has made it, and the workers that have it.
        self.sizes: dict[tuple[int, str], int] = {}
        self.where: dict[tuple[int, str], set[int]] = {}
        self.held: Counter[int] = Counter()
        self.most_held: Counter[int] = Counter()

    # --- What the master reckons ---

    def node(self, worker: int) -> int:
        return max(worker, 0) % self.n_nodes

    def home(self, function: FunctionPlan) -> int:
        """The worker of which the store gets what a function makes and reads."""
        return min(function.workers, default=HERE)

    def made_by(self, function: FunctionPlan) -> set[str]:
        """What has made the inputs of a function."""
        return {self.maker.get(column, SOURCE) for column in function.inputs}

    def oldest(self, worker: int, sizes: dict[str, int]) -> int | None:
        """Bytes of the oldest groups with all columns in the store of a worker."""
        wanted = {SOURCE} if worker == HERE else set()
        for function in self.plan.functions:
            if self.home(function) == worker:
                wanted |= {function.name} if function.outputs else set()
                wanted |= {
                    name
                    for name in self.made_by(function)
                    if self.node(self.place(name)) != self.node(worker)
                }
        if not wanted <= set(sizes):
            return None
        return sum(sizes[name] for name in wanted) * self.n_oldest * self.plan.group

    def place(self, name: str) -> int:
        return HERE if name == SOURCE else self.home(self.by_name[name])

    def spare(self, worker: int) -> int | None:
        return self.oldest(worker, self.largest)

    def needs(self, call: int) -> Needs:
        state = self.master.state(call)
        if state is None or state.function is None or state.taken is None:
            return Needs()
        ids = [row for row in state.taken.ids if row in self.master.rows]
        function, worker = state.function, self.home(state.function)
        n_bytes = len(ids) * self.largest.get(function.name, 0)
        brought = sum(self.sizes[row, name] for row in ids for name in self.far(function, row))
        rows = {worker: n_bytes + brought} if function.outputs or brought else {}
        return Needs(rows, {}, all(row in self.ledger.first for row in ids))

    def far(self, function: FunctionPlan, row: int) -> list[str]:
        """Inputs of a row that are not on the node of a function."""
        node = self.node(self.home(function))
        names = sorted(self.made_by(function))
        return [name for name in names if all(self.node(one) != node for one in self.where[row, name])]

    # --- What happens ---

    def has_room(self, partition: str) -> bool:
        if not super().has_room(partition):
            return False
        per_row = self.least[SOURCE]
        self.largest[SOURCE] = per_row
        has = self.room.has(HERE, per_row * self.plan.group, is_first=self.followed.is_lacking)
        self.master.is_full = not has
        return has

    def admit(self, partition: str) -> tuple[int, ...]:
        ids = super().admit(partition)
        for row in ids:
            self.put(HERE, SOURCE, row, self.least[SOURCE])
        self.followed.follow(())
        return ids

    def put(self, worker: int, name: str, row: int, size: int) -> None:
        """A store gets a value, and the master hears of it."""
        own = self.stores[worker].setdefault(row, {})
        self.held[worker] += size - own.get(name, 0)
        own[name] = size
        self.sizes[row, name] = size
        self.where.setdefault((row, name), set()).add(worker)
        if self.held[worker] > self.room.limit:
            raise StoreFull(f"worker {worker} holds {self.held[worker]} of {self.room.limit}")
        self.most_held[worker] = max(self.most_held[worker], self.held[worker])
        self.ledger.put(worker, name, [row], [size])

    def settle(self) -> None:
        gone = self.master.rows.freed()
        for row in gone:
            for name in self.names_of(row):
                for worker in self.where.pop((row, name)):
                    self.ledger.free(worker, [row])
                    self.send_free(worker, row)
        self.followed.follow(gone)

    def names_of(self, row: int) -> list[str]:
        return [name for name in self.least if (row, name) in self.where]

    def send_free(self, worker: int, row: int) -> None:
        if worker == HERE:
            self.drop(worker, row)
            return
        one = self.workers[worker]
        one.to_s = max(one.to_s, self.now_s + self.delay())
        self.at(one.to_s, lambda: self.drop(worker, row))

    def drop(self, worker: int, row: int) -> None:
        self.held[worker] -= sum(self.stores[worker].pop(row, {}).values())

    def write(self, order: Order) -> None:
        state = self.master.state(order.call)
        if state is not None and state.function is not None and state.taken is not None:
            function, worker = state.function, self.home(state.function)
            for row in state.taken.ids:
                if row not in self.master.rows:
                    continue
                for name in self.far(function, row):
                    self.put(worker, name, row, self.sizes[row, name])
                if function.outputs:
                    size = int(self.least[function.name] * self.random.uniform(1.0, self.growth))
                    if size > self.largest.get(function.name, -1):
                        self.largest[function.name] = size
                        self.room.revise()
                    self.put(worker, function.name, row, size)
        super().write(order)
