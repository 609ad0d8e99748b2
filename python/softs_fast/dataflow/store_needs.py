"""What the calls of a flow add to the stores of workers, by what functions have made so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from .backends.backend import Backend
from .declare.calls import TRAIN
from .declare.declaration import Declaration
from .declare.hooks import Hook, transfers
from .declare.plan import FlowPlan, FunctionPlan
from .declare.ranks import heads_of
from .declare.transfer import DataTransfer
from .held import HeldRows
from .master import DRIVER, CallState, Master
from .moves.extents import bytes_in_store
from .parallel.cutting import parts_of
from .parallel.moving import parts_of_move, plan_of_move
from .stores.ledger import StoreLedger
from .stores.oldest import OldestGroups, groups_that_suffice
from .stores.room import Needs, StoreRoom
from .worker.functions import Outcome
from .worker.work import MainWork

__all__ = ["FlowStores"]

#: What has made the columns of the source, among functions.
_SOURCE = "the source"
#: How many calls are known before those that have ended are dropped.
_MOST_KNOWN = 64


class FlowStores:
    """The bound of bytes of the stores of a flow.

    Args:
        limit: bytes that each store may hold.
        declaration: of the flow.
        plan: of the flow.
        backend: of the flow; it notes what stores hold.
        held: places of values.
    """

    def __init__(
        self, limit: int, declaration: Declaration, plan: FlowPlan, backend: Backend, held: HeldRows
    ) -> None:
        self.ledger = StoreLedger()
        self.room = StoreRoom(limit, self.ledger, self.needs, self._spare, self._owner_of)
        self._declaration = declaration
        self._plan = plan
        self._backend = backend
        self._held = held
        self._calls = {one.name: one for one in declaration.calls}
        self._makers = {column: one.name for one in plan.functions for column in one.outputs}
        self._n_oldest = groups_that_suffice(plan)
        #: The most bytes that a function has added to a row.
        self._largest: dict[str, int] = {}
        #: By worker, of how many rows each function adds its bytes to the store there if the oldest groups have all columns.
        self._rows_of_oldest: dict[int, Counter[str]] | None = None
        #: By call, of how many rows it is, the rows of each worker that makes columns, and bytes that come from other nodes.
        self._known: dict[int, tuple[int, dict[int, int], Counter[int]]] = {}
        #: Bytes of the group that waits for room in the store of this process.
        self._n_refused = 0
        backend.notes.ledger = self.ledger

    def attach(self, master: Master) -> None:
        """Use this master."""
        self._master = master
        self._oldest = OldestGroups(master.rows, self.ledger, self._n_oldest, self._plan.group)

    # --- Events ---

    def settle(self, gone: Sequence[int]) -> None:
        """Rows may have come, and these have gone from the flow; their memory goes where no step reads them."""
        self._oldest.follow(gone)
        if len(self._known) > _MOST_KNOWN:
            self._known = {
                call: one for call, one in self._known.items() if self._master.state(call) is not None
            }

    def learn(self, function: str, outcome: Outcome) -> None:
        """A function has made columns."""
        values = zip(*outcome.columns.values(), strict=True)
        most = max((sum(map(bytes_in_store, one)) for one in values), default=None)
        if most is not None and most > self._largest.get(function, -1):
            self._largest[function] = most
            self.room.revise()

    def joined(self) -> None:
        """A worker has been started again, perhaps on another node."""
        self._rows_of_oldest = None
        self._known.clear()

    # --- Admission ---

    def may_admit(self, columns: Mapping[str, Any]) -> bool:
        """Return whether a group of rows of these columns has room in the store of this process."""
        per_row = sum(map(bytes_in_store, columns.values()))
        self._largest[_SOURCE] = max(per_row, self._largest.get(_SOURCE, 0))
        self._n_refused = per_row * self._plan.group
        if self.room.has(DRIVER, self._n_refused, is_first=self._oldest.is_lacking):
            self._n_refused = 0
        return not self._n_refused

    def explain(self) -> str:
        """Return a line for each store that holds or has reserved something."""
        workers = sorted({*self.ledger.n_bytes, *self.room.reserved})
        lines = [self.room.line(worker) for worker in workers if self.ledger.n_bytes[worker]]
        if self._n_refused:
            lines.append(
                f"the next group of the source needs {self._n_refused} bytes in {self.room.line(DRIVER)}"
            )
        return "".join(f"\n{line}" for line in lines)

    # --- What calls need ---

    def needs(self, call: int) -> Needs:
        """Return what a call adds to stores, if it begins now."""
        state = self._master.state(call)
        if state is None:
            return Needs()
        shown = self._shown(state)
        if state.function is None or state.taken is None:
            return Needs(self._brought_by_hooks(state), shown)
        ids = [row_id for row_id in state.taken.ids if row_id in self._master.rows]
        if not ids:
            return Needs({}, shown)
        known = self._known.get(call)
        if known is None or known[0] != len(ids):
            makes, parts = self._parts(state.function, ids)
            known = self._known[call] = (len(ids), makes, self._brought(parts))
        _, makes, brought = known
        rows = dict(brought)
        if state.function.outputs:
            largest = self._largest.get(state.function.name, 0)
            for worker, n_rows in makes.items():
                rows[worker] = rows.get(worker, 0) + n_rows * largest
        first = self.ledger.first
        is_first = state.function.partition == TRAIN and all(row_id in first for row_id in ids)
        return Needs(rows, shown, is_first)

    def _parts(self, function: FunctionPlan, ids: list[int]) -> tuple[dict[int, int], dict[int, MainWork]]:
        """Return of how many rows each worker makes columns, and what each worker reads."""
        call, held = self._calls[function.name], self._held
        columns = {key: held.places(ids, key) for key in function.inputs}
        work = MainWork(function.name, tuple(ids), columns, [{}] * len(ids), 0, 0, False, 0)
        if len(function.workers) < 2 or not self._backend.cuts_rows:
            worker = function.workers[0] if function.workers else DRIVER
            return {worker: len(ids)}, {worker: work}
        assert call.model_name is not None
        parts = parts_of(work, call, self._plan.group)
        makes = {worker: parts[worker].part for worker in heads_of(call.model_name)}
        return {worker: part.n_real if part is not None else 0 for worker, part in makes.items()}, parts

    def _brought(self, parts: Mapping[int, Any]) -> Counter[int]:
        """Return the bytes that workers get from other nodes; on a node the first worker of a step gets each value."""
        found: Counter[int] = Counter()
        nodes = self._backend.nodes()
        if len(set(nodes.values())) < 2:
            return found
        asked: set[tuple[int, str, int]] = set()
        for worker in sorted(parts):
            node = nodes[self._number(worker)]
            for column, places in parts[worker].columns.items():
                ids = parts[worker].ids
                holders = self._backend.holders(column, ids, places)
                for row_id, place, own in zip(ids, places, holders, strict=True):
                    is_there = any(nodes[one] == node for one in own)
                    if not is_there and (node, column, row_id) not in asked:
                        asked.add((node, column, row_id))
                        found[worker] += bytes_in_store(place)
        return found

    def _brought_by_hooks(self, state: CallState) -> Counter[int]:
        """Return the bytes that a move of rows by hand, or after a call, brings to each worker."""
        found: Counter[int] = Counter()
        if len(set(self._backend.nodes().values())) < 2:
            return found
        for step in state.call.steps:
            hook = step.work
            if isinstance(hook, DataTransfer) and hook.ids:
                size, names = self._plan.group, set(hook.columns)
                lacking = {one // size for one in hook.ids if names - set(self._held.columns(one))}
                ids = [one for one in hook.ids if one // size not in lacking]
                columns = {name: self._held.places(ids, name) for name in hook.columns}
                if ids:
                    plan = plan_of_move(self._backend, hook.roles[0], size, ids, columns)
                    found += self._brought(parts_of_move(plan, hook.roles[0], ids, columns))
        return found

    def _shown(self, state: CallState) -> dict[int, int]:
        """Return the bytes of weights that hooks of a call put into stores, as far as some were before."""
        largest, found = self._backend.notes.largest_shown, dict[int, int]()
        if largest:
            name = state.function.name if state.function is not None else ""
            owner = self._calls[name].model_name if name else None
            for step in state.call.steps:
                if isinstance(step.work, Hook) and transfers(step.work, owner):
                    found |= {worker: largest[worker] for worker in step.workers if worker in largest}
        return found

    # --- What the oldest groups need ---

    def _spare(self, worker: int) -> int | None:
        if self._rows_of_oldest is None:
            self._rows_of_oldest = self._count_oldest()
        total = self._backend.notes.largest_shown.get(worker, 0)
        for function, n_rows in self._rows_of_oldest.get(worker, {}).items():
            largest = self._largest.get(function)
            if largest is None:
                return None
            total += n_rows * largest
        return total

    def _count_oldest(self) -> dict[int, Counter[str]]:
        found: dict[int, Counter[str]] = {}
        makers: dict[str, tuple[int, ...]] = {}
        own = [one for one in self._plan.functions if one.partition == TRAIN]
        dataset = self._declaration.datasets.get(TRAIN)
        if dataset is None:
            makers[_SOURCE] = (DRIVER,)
            found[DRIVER] = Counter({_SOURCE: self._n_oldest * self._plan.group})
        for function in own:
            if function.outputs:
                workers, n_rows = self._share(function)
                makers[function.name] = workers
                for worker in workers:
                    found.setdefault(worker, Counter())[function.name] += n_rows
        nodes = self._backend.nodes()
        for function in own if len(set(nodes.values())) > 1 else ():
            _, n_rows = self._share(function)
            sources = {self._makers.get(column, _SOURCE) for column in function.inputs} & set(makers)
            for worker in function.workers or (DRIVER,):
                node = nodes[self._number(worker)]
                for name in sources:
                    if any(nodes[self._number(maker)] != node for maker in makers[name]):
                        counts = found.setdefault(worker, Counter())
                        counts[name] = max(counts[name], n_rows)
        return found

    def _share(self, function: FunctionPlan) -> tuple[tuple[int, ...], int]:
        """Return the workers that make columns, and of how many rows of the oldest groups each does at most."""
        role, size = self._calls[function.name].model_name, self._plan.group
        if role is None:
            return (DRIVER,), self._n_oldest * size
        if not self._backend.cuts_rows or len(role.on) == 1:
            return role.on[:1], self._n_oldest * size
        heads = heads_of(role)
        # Ranks are balanced by lengths, to one group.
        per_rank = -(-self._n_oldest // len(heads)) + (len(heads) > 1)
        return heads, min(per_rank, self._n_oldest) * size

    def _number(self, worker: int) -> int:
        """Return the number by which nodes and places name a worker."""
        return max(self._declaration.workers, default=0) + 1 if worker == DRIVER else worker

    def _owner_of(self, column: str) -> str:
        if column.startswith("weights "):
            return "weights"
        return self._makers.get(column, _SOURCE)
