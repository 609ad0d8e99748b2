"""The master worker: which rows are ready for which function, and the tickets of its calls. No clock, no socket, no tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from ..declare.plan import FlowPlan, FunctionPlan
from .holdings import Frees, Holdings
from .order.sequencer import Sequencer
from .order.steps import CallState, Output, Step
from .rows.records import Tag
from .rows.saved import SavedGroup, admit_again, n_taken
from .rows.table import RowTable, Taken

__all__ = ["DRIVER", "Master", "TooOld"]

#: The worker of functions without a role: the process of the flow itself.
DRIVER = -1


class TooOld(RuntimeError):
    """A training function got rows older than the bound that was proven: an error of this package."""


class Master:
    """Rows, their holders, and order of a flow: after each event `advance` says what is to be done.

    Args:
        plan: Plan of the flow.
        steps_of: Function that returns the steps of a call of a function on rows.
        workers: Numbers of all workers but `DRIVER`.
        depth: See `Sequencer`; also the unfinished calls that a function may have.
    """

    def __init__(
        self,
        plan: FlowPlan,
        steps_of: Callable[[FunctionPlan, Taken], tuple[Step, ...]],
        workers: Iterable[int],
        *,
        depth: int = 2,
    ) -> None:
        self.plan = plan
        self.rows = RowTable(plan)
        self.held = Holdings()
        # Otherwise nothing can run while training does.
        is_ahead = any(one.slots > one.groups_per_step for one in plan.partitions.values())
        self.order = Sequencer({*workers, DRIVER}, depth=depth, has_late_hooks=is_ahead)
        self._steps_of = steps_of
        self._depth = depth
        self._numbers = count(1)
        self._functions = {one.name: one for one in plan.functions}
        self._open: dict[int, CallState] = {}
        self._n_open = dict.fromkeys(self._functions, 0)
        self._over: set[str] = set()
        #: Steps that training functions may begin before a common save; None: no limit.
        self.hold: int | None = None
        #: Calls that functions have made, of which the answer is no error: their rows are for another call.
        self.repeated: set[int] = set()
        #: Elements of datasets that are read again for rows of the flow: more can be ready soon.
        self.n_awaited = 0
        self._unread: set[int] = set()
        self._n_withdrawn_at = 0
        # Functions that make inputs of a function, directly or not.
        self._upstream: dict[str, set[str]] = {}
        for one in plan.functions:
            makers = [
                other.name
                for other in plan.functions
                if other.partition == one.partition and set(other.outputs) & set(one.inputs)
            ]
            self._upstream[one.name] = set(makers).union(*(self._upstream[name] for name in makers))

    # --- Events ---

    def admit(
        self,
        partition: str,
        *,
        again: SavedGroup | None = None,
        n_bytes: int = 0,
        tags: Sequence[Mapping[str, Tag]] | None = None,
    ) -> tuple[int, ...]:
        """Add a group of rows that has the columns of the source; returns their ids.

        Args:
            partition: Name of the partition of the rows.
            again: Group of a common save that it is; None: it is new.
            n_bytes: Bytes of the columns, which all rows of the group share.
            tags: Tags of each row.

        Raises:
            ValueError: see `RowTable.admit`.
        """
        if again is None:
            ids = self.rows.admit(partition, n_bytes=n_bytes, tags=tags)
        else:
            ids = admit_again(self.rows, again, n_bytes=n_bytes, tags=tags)
        self.held.admit(ids)
        return ids

    def end_source(self, partition: str) -> None:
        """No more rows will be admitted to a partition: functions also take the rest."""
        self._over.add(partition)

    def post(self, function: str, ids: Iterable[int], now_s: float) -> int:
        """Park a call of a function on rows that a caller has chosen; returns its number.

        Raises:
            ValueError: see `RowTable.take_ids`, or there is no such function.
        """
        if function not in self._functions:
            raise ValueError(f"no function is named {function!r}; there are {', '.join(self._functions)}")
        taken = self.rows.take_ids(function, ids)
        state = self._state(self._functions[function], taken, now_s, is_posted=True)
        self.order.park(state)
        return state.number

    def post_steps(self, name: str, steps: tuple[Step, ...], now_s: float, *, restores: bool = False) -> int:
        """Park steps without rows; returns the number of their call. `restores`: see `CallState`."""
        call = CallState(
            *(next(self._numbers), name, steps, -1), restores=restores, is_posted=True, since_s=now_s
        )
        self._open[call.number] = call
        self.order.park(call)
        return call.number

    def cancel(self, call: int) -> bool:
        """Take back a call that a caller has posted; its rows are as before. Returns False if it has tickets, or its answer."""
        state = self._open.get(call)
        if state is None or not state.is_posted or self.order.withdraw(call) is None:
            return False
        del self._open[call]
        if state.function is not None and state.taken is not None:
            self._n_open[state.function.name] -= 1
            self.rows.give_back(state.function.name, state.taken, was_begun=False)
        return True

    def wrote(
        self,
        call: int,
        worker: int,
        ids: Sequence[int],
        columns: Mapping[str, Sequence[Any]],
        *,
        n_bytes: int,
        version: int | None = None,
    ) -> Frees:
        """A worker has made columns in the main part of a call that is open; returns what nothing will read.

        Args:
            call: Number of the call.
            worker: Number of the worker.
            ids: Ids of the rows that it has made, of whole groups.
            columns: Places of the values by the name of the column, as many as ids.
            n_bytes: Bytes of each row.
            version: See `RowTable.wrote`.
        """
        state = self._open[call]
        assert state.function is not None
        assert state.taken is not None
        # Of others the inputs are made again, or they have gone.
        current = set(self.rows.current(state.function.name, state.taken))
        kept = [i for i, row_id in enumerate(ids) if row_id in current]
        made = [ids[i] for i in kept]
        self.held.put(made, {name: [places[i] for i in kept] for name, places in columns.items()}, worker)
        self.rows.wrote(made, columns, n_bytes=n_bytes, version=version)
        return self.held.note(worker, [row_id for row_id in ids if row_id not in current]) if columns else {}

    def lose(self, worker: int, reason: str) -> None:
        """A worker is gone with the rows that it held, and will join again: calls that it had are made again.

        Calls that a caller has posted are not: they have failed.

        Args:
            worker: Number of the worker.
            reason: Text with what is known of the end of the worker.
        """
        for state in self._open.values():
            if worker in state.mains and not state.is_posted:
                self.repeated.add(state.number)
        self.rows.lose(self.held.lose(worker))
        self.order.lose(worker, reason, returns=True)

    def unread(self, call: int) -> None:
        """A call could not read its inputs, and has not entered its function: its rows are for another call."""
        state = self._open.get(call)
        if state is not None:
            self._unread.add(call)
            if not state.is_posted:
                self.repeated.add(call)

    def advance(self, now_s: float, *, automatic: bool = True) -> list[Output]:
        """Make calls of what is ready, and give tickets; returns what is to be said.

        Args:
            now_s: the time.
            automatic: whether functions take what is ready; otherwise only posted calls run.

        Raises:
            TooOld: a training function got rows that are older than the bound.
        """
        outputs: list[Output] = []
        while True:
            for function in self.plan.functions if automatic else ():
                self._make_calls(function, now_s)
            self._withdraw()
            said = self.order.advance(now_s)
            outputs += said
            answers = [one for one in said if isinstance(one, CallState)]
            for call in answers:
                self._end(call)
            if not answers and not (automatic and self.is_idle and self._make_short_call(now_s)):
                return outputs

    # --- What is known ---

    @property
    def calls(self) -> Mapping[int, CallState]:
        """Calls that have no answer yet, by number."""
        return self._open

    @property
    def awaited(self) -> frozenset[int]:
        """Workers that will join again, but for replicas of pools that something can do without."""
        away = self.order.away
        if not away:
            return away
        spare: set[int] = set()
        needed = set().union(*(call.mains for call in self.order.ready))
        for one in self.plan.functions:
            (spare if one.is_pool and self._living(one) else needed).update(one.workers)
        return away - (spare - needed)

    @property
    def is_idle(self) -> bool:
        """Whether no call can begin or end before rows are admitted, or a caller posts one."""
        return not (self.order.tickets or self.order.ready or self.awaited or self.n_awaited)

    def is_over(self, partition: str) -> bool:
        """Return whether the source of a partition has ended."""
        return partition in self._over

    # --- Inside ---

    def _make_calls(self, function: FunctionPlan, now_s: float) -> None:
        while self._has_worker(function) and self._may_begin(function):
            is_last = False
            if not self.rows.next_size(function.name):
                is_last = self._is_last(function)
                if not is_last or not self.rows.next_size(function.name, is_last=True):
                    return
            taken = self.rows.take(function.name, is_last=is_last)
            if (
                taken.age > self.plan.partitions[function.partition].age_bound
                and function.partition == "train"
            ):
                raise TooOld(
                    f"{function.name} got rows {taken.ids[:8]} that are {taken.age} steps old; "
                    f"the bound is {self.plan.partitions[function.partition].age_bound}"
                )
            if not taken.ids:
                self.rows.done(function.name, taken)  # it goes without all of them
                continue
            if is_last and function.drops_rest and len(taken.groups) < function.groups:
                self._skip(function, taken)
                continue
            self.order.offer(self._state(function, taken, now_s, is_posted=False))

    def _has_worker(self, function: FunctionPlan) -> bool:
        """Return whether the workers of a function may get another call.

        A replica of a pool has one at a time: a second one would wait behind it while another replica is free.
        """
        if function.is_pool:
            return bool(self._living(function) - self._busy(function))
        return self._n_open[function.name] < self._depth and self._can_run(function)

    def _can_run(self, function: FunctionPlan) -> bool:
        """Return whether the workers of a function are there; of a pool one."""
        living = self._living(function)
        return bool(living) if function.is_pool else len(living) == len(function.workers)

    def _living(self, function: FunctionPlan) -> set[int]:
        return set(function.workers) & self.order.alive

    def _busy(self, function: FunctionPlan) -> set[int]:
        own = [state.mains for state in self._open.values() if state.function is function]
        return set().union(*own)

    def _placed(self, function: FunctionPlan) -> FunctionPlan:
        """Return a function on the workers of its next call: of a pool one that lives, is free, and has the fewest calls."""
        if not function.is_pool:
            return function
        living, busy = self._living(function), self._busy(function)
        counts = dict.fromkeys(living - busy or living or function.workers, 0)
        for state in self._open.values():
            for worker in counts.keys() & state.mains:
                counts[worker] += 1
        return replace(function, workers=(min(counts, key=lambda worker: (counts[worker], worker)),))

    def _may_begin(self, function: FunctionPlan) -> bool:
        """Return whether no earlier call of a training function might still run again because it cannot read its inputs.

        Nor is there a common save before it. So its calls run in the order in which their rows were taken, whatever is lost.
        """
        if not function.is_strict:
            return True
        if self.hold is not None:
            n_groups = self.hold * self.plan.partitions[function.partition].groups_per_step
            if n_taken(self.rows, function.name) >= n_groups * function.reuse:
                return False  # a common save comes first
        if not self._n_open[function.name]:
            return True
        own = [state for state in self._open.values() if state.function is function and not state.is_posted]
        return all(self.order.has_run(state.number) for state in own)

    def _withdraw(self) -> None:
        """Take back calls without tickets that have lost their inputs since they were made."""
        if self.rows.n_disturbed == self._n_withdrawn_at:
            return
        self._n_withdrawn_at = self.rows.n_disturbed
        for call in (*self.order.ready, *self.order.parked):
            if call.function is None or call.taken is None:
                continue
            if not self.rows.has_inputs(call.function.name, call.taken):
                self.unread(call.number)
                self.order.cancel(call.number, "its rows have lost columns, which are made again")

    def _make_short_call(self, now_s: float) -> bool:
        """Make a call of fewer rows than a function wants, if no more can come; returns whether there is one.

        That is so after a drop: the rows that take the place of those that were dropped may be too few for a call.
        """
        for function in self.plan.functions:
            is_possible = not function.is_strict and self._can_run(function)
            has_all = self.rows.room(function.partition) < 1
            if is_possible and has_all and self.rows.n_ready(function.name):
                taken = self.rows.take(function.name, is_last=True)
                self.order.offer(self._state(function, taken, now_s, is_posted=False))
                return True
        return False

    def _is_last(self, function: FunctionPlan) -> bool:
        if self.n_awaited or function.partition not in self._over or not self.rows.n_ready(function.name):
            return False
        if self._n_open[function.name] and function.reuse > 1:
            return False  # its rows may return for another use
        return not self.rows.waiting(function.partition, self._upstream[function.name])

    def _skip(self, function: FunctionPlan, taken: Taken) -> None:
        if function.outputs:
            self.rows.drop(taken.ids, "rest")
            self.rows.done(function.name, taken)  # what it goes without is not dropped
        else:
            for _ in range(function.reuse):
                self.rows.done(function.name, taken)

    def _state(self, function: FunctionPlan, taken: Taken, now_s: float, *, is_posted: bool) -> CallState:
        steps = self._steps_of(self._placed(function), taken)
        state = CallState(
            *(next(self._numbers), function.name, steps, -1 if is_posted else min(taken.ids)),
            function=function,
            taken=taken,
            is_posted=is_posted,
            since_s=now_s,
        )
        self._open[state.number] = state
        self._n_open[function.name] += 1
        return state

    def _end(self, call: CallState) -> None:
        del self._open[call.number]
        if call.function is None or call.taken is None:
            return
        self._n_open[call.function.name] -= 1
        if call.reason is None:
            self.rows.done(call.function.name, call.taken)
        elif not call.function.is_strict or call.number in self._unread:
            # Otherwise a training step may have happened in part: it is never repeated.
            self.rows.give_back(call.function.name, call.taken)
        self._unread.discard(call.number)
