"""Runs the tickets of a flow in this process: all workers are here, and their steps run one after the other."""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from ..errors import FlowError
from .batch import Rows
from .declare.calls import Interface, MFCDef
from .declare.hooks import Hook
from .declare.plan import FlowPlan, FunctionPlan
from .declare.roles import Placement
from .master import DRIVER, CallState, Master
from .objects import Objects, numbers_of
from .order.steps import Abort, Answer, Kind, Order, Step
from .results import CallResult
from .rows.table import Taken
from .values import Value, cut, digest_of, n_bytes_of

__all__ = ["Runner"]

# In one process each row is held by it; other holders are other processes.
_HERE = 0


@dataclass
class _Running:
    """What is known of a call between its steps."""

    state: CallState
    numbers: dict[str, float]
    seconds: dict[str, float]
    digest: str = ""
    error: FlowError | None = None
    cause: BaseException | None = None


class Runner:
    """Runs what the master orders, on the objects of the roles and the values of the rows.

    Args:
        plan: of the flow.
        calls: its functions, by name.
        objects: of its roles.
        digests: whether each call gets a digest of its inputs.
    """

    def __init__(self, plan: FlowPlan, calls: dict[str, MFCDef], objects: Objects, *, digests: bool) -> None:
        workers = {worker for role in objects.roles for worker in role.on}
        self.master = Master(plan, self._steps_of, workers)
        self.values: dict[int, dict[str, Value]] = {}
        self.results: list[CallResult] = []
        #: Why calls failed, by number, until they are asked for.
        self.errors: dict[int, tuple[FlowError, BaseException | None]] = {}
        self.posted: dict[int, CallResult | None] = {}
        self.n_failed = 0
        self.last_failure = ""
        #: When the last training call ended, and by step when the first one began.
        self.trained_s: float | None = None
        self.waited_s: dict[int, float] = {}
        self._plan = plan
        self._calls = calls
        self._objects = objects
        self._digests = digests
        self._n_calls = dict.fromkeys(calls, 0)
        self._orders: list[tuple[int, Order]] = []
        self._missing: dict[int, list[int]] = {}
        self._running: dict[int, _Running] = {}
        self._through: dict[str, int] = {name: 0 for name, one in calls.items() if one.trains}

    # --- Rows ---

    def admit(self, partition: str, item: dict[str, Value]) -> tuple[int, ...]:
        """Make a group of rows of an item of the source."""
        columns = {name: item[name] for name in self._plan.source[partition]}
        n_bytes = sum(n_bytes_of(value) for value in columns.values())
        ids = self.master.rows.admit(partition, _HERE, n_bytes=n_bytes)
        for row_id in ids:
            self.values[row_id] = dict(columns)
        return ids

    def free(self) -> None:
        """Drop the values of rows that the master has removed."""
        for row_id in self.master.rows.freed():
            del self.values[row_id]

    # --- Tickets ---

    def advance(self, *, automatic: bool) -> bool:
        """Run the step with the lowest ticket; returns False if there is none, and nothing was answered."""
        answered = self._listen(automatic=automatic)
        if not self._orders:
            return answered
        ticket, order = heappop(self._orders)
        workers = self._missing.pop(ticket)
        if not workers:
            return True  # it was aborted
        reason = self._run(order)
        for worker in workers:
            self.master.order.report(worker, order.incarnation, ticket, reason)
        self._listen(automatic=automatic)
        return True

    def _listen(self, *, automatic: bool) -> bool:
        answered = False
        for output in self.master.advance(time.monotonic(), automatic=automatic):
            if isinstance(output, Answer):
                self._end(output)
                answered = True
            elif isinstance(output[1], Order):
                worker, order = output
                state = self.master.state(order.call)
                if order.call not in self._running and state is not None:
                    self._running[order.call] = _Running(state, {}, {})
                if order.ticket not in self._missing:
                    self._missing[order.ticket] = []
                    heappush(self._orders, (order.ticket, order))
                self._missing[order.ticket].append(worker)
            else:
                self._abort(*output)
        self.free()
        return answered

    def _abort(self, worker: int, abort: Abort) -> None:
        waiting = self._missing.get(abort.ticket, [])
        if worker in waiting:
            waiting.remove(worker)
            self.master.order.report(worker, abort.incarnation, abort.ticket, abort.reason)

    def _run(self, order: Order) -> str | None:
        """Run a step; returns why it failed."""
        running = self._running[order.call]
        state = running.state
        work = order.step.work
        began = time.perf_counter()
        try:
            if isinstance(work, Hook):
                owner = self._calls[state.function.name].model_name if state.function is not None else None
                step = state.taken.step + 1 if state.taken is not None else 0
                running.numbers |= self._objects.run(work, owner, step)
            else:
                self._main(state, running)
        except Exception as error:
            running.error, running.cause = self._failure(state, work, error), error
            return str(error) or type(error).__name__
        name = work.name if isinstance(work, Hook) else "main"
        running.seconds[name] = running.seconds.get(name, 0.0) + time.perf_counter() - began
        return None

    def _end(self, answer: Answer) -> None:
        running = self._running.pop(answer.call)
        state, taken = running.state, running.state.taken
        ids = taken.ids if taken is not None else ()
        result = CallResult(
            answer.name,
            ids,
            taken.step if taken is not None else 0,
            taken.age if taken is not None else 0,
            running.numbers,
            running.seconds,
            running.digest,
        )
        if answer.reason is not None:
            error = running.error or FlowError(f"{answer.name} failed: {answer.reason}")
            self.errors[answer.call] = (error, running.cause)
        elif state.is_posted:
            self.posted[answer.call] = result
        else:
            self.results.append(result)

    # --- The main part ---

    def _steps_of(self, function: FunctionPlan, taken: Taken) -> tuple[Step, ...]:
        call = self._calls[function.name]
        self._n_calls[function.name] += 1
        number = self._n_calls[function.name]
        own = frozenset(function.workers) or frozenset({DRIVER})

        def hooks(kind: Kind, declared: Sequence[Hook]) -> list[Step]:
            due = [one for one in declared if number % one.every == 0]
            return [Step(kind, self.participants(one, call.model_name), one, 0.1) for one in due]

        main = Step(Kind.MAIN, own, function.name)
        return (*hooks(Kind.PRE, call.pre_hooks), main, *hooks(Kind.POST, call.post_hooks))

    @staticmethod
    def participants(hook: Hook, owner: Placement | None) -> frozenset[int]:
        """Return the workers of all roles that take part in a hook."""
        roles = {*hook.roles, *([owner] if owner is not None else [])}
        return frozenset(worker for role in roles for worker in role.on) or frozenset({DRIVER})

    def _main(self, state: CallState, running: _Running) -> None:
        assert state.function is not None
        assert state.taken is not None
        call, taken = self._calls[state.function.name], state.taken
        ids = [row_id for row_id in taken.ids if row_id in self.values]
        if not ids:
            return  # another function has dropped them all
        rows = self._rows(call, taken, ids)
        if self._digests:
            columns = [(f"{i} {key}", self.values[i][key]) for i in ids for key in call.input_keys]
            running.digest = digest_of(columns)
        if call.trains and self.trained_s is not None:
            self.waited_s.setdefault(taken.step, time.monotonic() - self.trained_s)
        if call.model_name is not None:
            result = getattr(self._objects[call.model_name], str(call.interface_impl))(rows)
        else:
            assert callable(call.interface_impl)
            result = call.interface_impl(rows)
        columns_made = self._store(call, rows, ids, result, running)
        version = None
        if call.interface_type is Interface.GENERATE and call.model_name is not None:
            version = self._objects.versions.get(call.model_name.name)
        n_bytes = sum(n_bytes_of(self.values[i][column]) for i in ids for column in columns_made) // len(ids)
        self.master.wrote(state.call.number, _HERE, n_bytes=n_bytes, version=version)
        self._drop(rows)
        if call.trains:
            self._trained(call, taken)

    def _rows(self, call: MFCDef, taken: Taken, ids: list[int]) -> Rows:
        n_padding = 0
        if call.uneven == "pad" and call.least == call.n_seqs:
            n_padding = max(call.n_seqs - len(ids), 0)
        padded = [ids[i % len(ids)] for i in range(len(ids) + n_padding)]
        return Rows(
            {
                call.input_key_remap.get(key, key): [self.values[i][key] for i in padded]
                for key in call.input_keys
            },
            padded,
            group=self._plan.group,
            n_padding=n_padding,
            step=taken.step,
            use=taken.use,
            ends_step=taken.ends_step,
            age=taken.age,
            tags=[self.master.rows.tags(i) for i in padded],
        )

    def _store(
        self, call: MFCDef, rows: Rows, ids: list[int], result: Any, running: _Running
    ) -> tuple[str, ...]:
        """Keep the columns that a function has returned; returns their names."""
        named = result if isinstance(result, dict) else {}
        inside = {call.output_key_remap.get(key, key): key for key in named}
        missing = [column for column in call.output_keys if column not in inside]
        if missing:
            have = ", ".join(sorted(map(str, named))) if named else f"a {type(result).__name__}"
            raise FlowError(f"it did not return {', '.join(missing)}; it returned {have}")
        for column in call.output_keys:
            values = cut(column, named[inside[column]], rows.n_rows)
            for row_id, value in zip(ids, values, strict=False):  # what is behind them is padding
                self.values[row_id][column] = value
        others = {
            key: value
            for key, value in named.items()
            if call.output_key_remap.get(key, key) not in call.output_keys
        }
        running.numbers |= numbers_of("it", others if isinstance(result, dict) else result)
        return call.output_keys

    def _drop(self, rows: Rows) -> None:
        for dropped in (rows.dropped, rows.failed):
            for row_id, reason in dropped.items():
                label = "failed" if dropped is rows.failed else reason
                try:
                    n = self.master.rows.drop([row_id], label)
                except ValueError as error:
                    raise FlowError(str(error)) from None
                if dropped is rows.failed and n:
                    self.n_failed += n
                    self.last_failure = reason

    def _trained(self, call: MFCDef, taken: Taken) -> None:
        self.trained_s = time.monotonic()
        if taken.ends_step and call.model_name is not None:
            self._through[call.name] = taken.step + 1
            same = [
                self._through[one.name]
                for one in self._calls.values()
                if one.trains and one.model_name is call.model_name
            ]
            self._objects.versions[call.model_name.name] = min(same)

    @staticmethod
    def _failure(state: CallState, work: object, error: Exception) -> FlowError:
        what = f"hook {work.name} of {state.call.name}" if isinstance(work, Hook) else state.call.name
        ids = state.taken.ids if state.taken is not None else ()
        some = f" on {len(ids)} rows {list(ids[:8])}{' ...' if len(ids) > 8 else ''}" if ids else ""
        text = "".join(traceback.format_exception(error)).rstrip()
        return FlowError(f"{what} failed{some}: {type(error).__name__}: {error}\n{text}")
