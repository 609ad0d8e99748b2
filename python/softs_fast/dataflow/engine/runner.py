"""Turns what the master orders into work of a backend, and what workers have done into events of the master."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from ...errors import FlowError
from ..declare.calls import Interface, MFCDef
from ..declare.declaration import Declaration
from ..declare.hooks import Evaluate, Hook, LoadRows, transfers
from ..declare.plan import FlowPlan, FunctionPlan
from ..declare.transfer import DataTransfer
from ..link.results import Failure, Result
from ..link.tasks import MainTask
from ..master.master import DRIVER, Master
from ..master.order.steps import CallState, Kind, Step
from ..master.rows.saved import SavedGroup
from ..master.rows.table import Taken
from ..master.versions import Versions
from ..process.work import HookWork, Work
from ..store.forms import ColumnForms, forms_of
from ..store.values import Value, n_bytes_of
from ..workers.backend import Back, Backend, Done, Loaded, Lost
from .cutting import parts_of
from .dataset_reads import DatasetReads
from .ends import Ends, open_there
from .late_steps import LateSteps
from .not_finite import NotFinite
from .recovery import Recovery
from .results import CallResult
from .row_moves import RowMoves, described, steps_of
from .running import Observer, SentStep, failure_of, owner_of

__all__ = ["Runner"]

logger = logging.getLogger(__name__)


class Runner:
    """Runs what the master orders.

    Args:
        plan: Plan of the flow.
        declaration: Declaration of the flow.
        backend: Backend that runs the steps.
        ends: Ends of workers, also under runners before this one.
        deadline_s: Seconds that a step may be with a worker process, where its function says nothing else; None: no
            limit.
    """

    def __init__(
        self, plan: FlowPlan, declaration: Declaration, backend: Backend, ends: Ends, deadline_s: float | None
    ) -> None:
        self.master, self.ends = Master(plan, self._steps_of, declaration.workers), ends
        self.held = self.master.held
        self.results: list[CallResult] = []
        #: Why calls failed, by number, until they are asked for.
        self.errors: dict[int, tuple[FlowError, BaseException | None]] = {}
        self.posted: dict[int, CallResult | None] = {}
        #: Of workers that were lost: why the flow cannot go on.
        self.lost: FlowError | None = None
        #: When the last call was answered, and the age of the rows of the last one that trained.
        self.answered_s, self.age = time.monotonic(), 0
        self.n_failed = 0
        self.last_failure = ""
        #: When the last training call ended, and by step when the first one began.
        self.trained_s: float | None = None
        self.waited_s: dict[int, float] = {}
        self.observer: Observer | None = None
        self.not_finite = NotFinite()
        self._plan = plan
        self._backend = backend
        self._calls = {one.name: one for one in declaration.calls}
        self._sent: dict[int, SentStep] = {}
        self._versions = Versions(declaration)
        self._late = LateSteps(self._calls, deadline_s, self.master.order, backend)
        self.recovery = Recovery(declaration, self.master)
        self.forms = ColumnForms()
        self.datasets = DatasetReads(declaration, backend, self.master, self.forms)
        self._moves = RowMoves(self._calls, plan.group, self.held)
        # Calls of `post_steps`: what they load may not be there any more when a worker is started again.
        self._of_journal: set[int] = set()
        self._loaded: list[Done] = []

    # --- Common saves ---

    def saved(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return what `Versions.saved` does."""
        return self._versions.saved()

    def restore(self, versions: Mapping[str, int], through: Mapping[str, int], n_failed: int) -> None:
        """Go on from a common save; the rows are restored elsewhere."""
        self._versions.restore(versions, through)
        self.n_failed = n_failed

    def post_steps(self, name: str, steps: tuple[Step, ...]) -> int:
        """Post steps without rows, and give them tickets before all that has none; returns the number of their call."""
        number = self.master.post_steps(name, steps, time.monotonic())
        self.posted[number] = None
        self._of_journal.add(number)
        self.master.order.flush([number])
        self._listen(automatic=False)
        return number

    def take_loaded(self) -> list[Done]:
        """Return what workers have read of files of rows."""
        loaded, self._loaded = self._loaded, []
        return loaded

    # --- Rows ---

    def admit(
        self, partition: str, item: dict[str, Value], again: SavedGroup | None = None
    ) -> tuple[int, ...]:
        """Make a group of rows of an item of the source; `again`: it is one of a common save.

        Raises:
            FlowError: A value has another form than the first of its column.
        """
        columns = {name: item[name] for name in self._plan.source[partition]}
        rows = self.master.rows
        maker, where = f"the source of partition {partition!r}", f"of group {rows.counts[partition].admitted}"
        for name, value in columns.items():
            self.forms.check(partition, name, forms_of([value]), [where], maker)
        n_bytes = sum(n_bytes_of(value) for value in columns.values())
        ids = self.master.admit(partition, again=again, n_bytes=n_bytes)
        for name, value in columns.items():
            # All rows of a group read one value.
            (place,) = self._backend.put(name, ids[:1], [value])
            self.held.put(ids, {name: [place] * len(ids)}, DRIVER)
        return ids

    def free_bytes(self) -> int | None:
        """Return what `Backend.free_bytes` does."""
        return self._backend.free_bytes()

    def free(self) -> None:
        """Drop the values of rows that the master has removed."""
        freed = self.master.rows.freed()
        self._backend.free(self.held.drop(freed))
        if self.observer is not None:
            self.observer.drop(freed)

    # --- Tickets ---

    def advance(self, *, automatic: bool, timeout_s: float | None = None) -> bool:
        """Give tickets, and take what has ended; returns False if nothing runs, and nothing was answered.

        Args:
            automatic: whether functions take what is ready; otherwise only posted calls run.
            timeout_s: how long to wait for a step that runs elsewhere; None: as long as it takes.
        """
        if self._listen(automatic=automatic):
            return True
        # A replica that is started again is no reason to wait while its pool has others.
        events = self._backend.wait(self._late.limit(timeout_s) if self._is_open else 0.0)
        for event in events:
            if isinstance(event, Lost):
                self._lose(event)
            elif isinstance(event, Back):
                self.recovery.join(event.worker, time.monotonic())
                self.datasets.join(event.worker)
            elif isinstance(event, Loaded):
                self.datasets.loaded(event)
            else:
                self._done(event)
        answered = self._listen(automatic=automatic)
        self._late.end()
        return answered or bool(events) or self._is_open

    @property
    def _n_complete(self) -> int:
        return sum(one.complete for one in self.master.rows.counts.values())

    @property
    def _is_open(self) -> bool:
        """Whether something runs, or is awaited."""
        return bool(self._sent or self.master.awaited or self.datasets.is_open)

    def _listen(self, *, automatic: bool) -> bool:
        answered, n_complete = False, self._n_complete
        for output in self.master.advance(time.monotonic(), automatic=automatic):
            if isinstance(output, CallState):
                self._end(output)
                answered = True
            elif isinstance(output[1], Step):
                self._send(*output)
            else:
                self._backend.abort(*output)
        self.recovery.count_rows()
        self.free()
        # Without a call a step is complete of which training goes without all rows.
        return answered or self._n_complete > n_complete

    def _send(self, worker: int, step: Step) -> None:
        state = self.master.calls[step.call]
        if step.ticket not in self._sent:
            ids = self._moves.ids_of(step, state)
            self._sent[step.ticket] = SentStep(step, ids, self.master.rows.n_disturbed)
            self.held.pin(ids)
        describe = self._work_of(state, step, worker)
        has_rows = isinstance(step.work, str) or step.kind is Kind.MOVE
        function = state.function if has_rows else None
        if self._backend.cuts_rows and function is not None and len(step.workers) > 1:
            describe = self._cut(self._sent[step.ticket], function.name, worker, describe)
        if step.kind is Kind.MOVE:
            describe = self._moves.inputs(step, state, describe)
        self._backend.send(worker, step, describe)

    def _cut(
        self, sent: SentStep, function: str, worker: int, describe: Callable[[], Work | None]
    ) -> Callable[[], Work | None]:
        """Return what says what one of several workers has to do."""

        def part() -> Work | None:
            if sent.parts is None:
                # All have parts of the same rows, also if some are dropped before the last one asks.
                work = describe()
                sent.parts = (
                    parts_of(work, self._calls[function], self._plan.group)
                    if isinstance(work, MainTask)
                    else {}
                )
            return sent.parts.get(worker)

        return part

    def _work_of(self, state: CallState, step: Step, worker: int) -> Callable[[], Work | None]:
        """Return what says what is to be done, when it is asked: rows may have been dropped by then.

        Of a step that brings the rows of a main part it is the main part.
        """
        work, function, taken = step.work, state.function, state.taken
        if isinstance(work, DataTransfer) and step.kind is not Kind.MOVE:
            return self._moves.outputs(worker, step)
        if isinstance(work, Hook) and step.kind is not Kind.MOVE:
            owner = owner_of(state, self._calls)
            hook = HookWork(work, owner, taken.step + 1 if taken is not None else 0)
            return lambda: hook
        assert function is not None
        assert taken is not None
        return described(step, self._calls[function.name], taken, self.master.rows, self.held)

    def _done(self, done: Done) -> None:
        sent = self._sent.get(done.result.ticket)
        if sent is None or done.worker not in sent.step.missing:
            return
        state = self.master.calls.get(sent.step.call)
        result, cause, work = done.result, done.cause, sent.step.work
        if state is None or state.error is not None:
            # The call has failed elsewhere: what this part has made is dropped.
            self._drop_made(done)
        elif result.failure is None:
            sent.add(done, self._version_at(state, sent, done))
            try:
                if sent.step.missing == {done.worker}:
                    self._use(state, sent)
            except FlowError as error:
                cause = error
                result = Result(result.ticket, failure=Failure.of(error))
        reason = None
        if result.failure is not None:
            reason = result.failure.reason
            if state is not None and result.unread and self._may_run_again(sent, state):
                self.master.unread(state.number)
            if state is not None and state.error is None:
                where = f" on worker {done.worker}" if len(sent.step.workers) > 1 else ""
                state.error = failure_of(state, work, result.failure, where)
                state.cause = cause
            for one in sent.clear():
                self._drop_made(one)
        elif state is not None:
            if not isinstance(work, Hook):
                state.add_time("data_transfer", result.ticket, result.read_s)
            state.add_time(work.name if isinstance(work, Hook) else "main", result.ticket, result.seconds)
        if self.observer is not None:
            taken = state.taken if state is not None else None
            call = None if isinstance(work, Hook) else self._calls[str(work)]
            self.observer.note(done, sent.step, call, taken, len(self.master.rows))
            # Rows may have been dropped meanwhile: nothing will read what was made of them.
            self.observer.drop([row_id for row_id in result.ids if row_id not in self.master.rows])
        self.master.order.report(done.worker, result.ticket, reason)
        self._end_if_complete(sent)

    def _drop_made(self, done: Done) -> None:
        self._backend.free(self.held.note(done.worker, done.result.ids if done.result.columns else ()))

    def _version_at(self, state: CallState, sent: SentStep, done: Done) -> int | None:
        """Note what a worker's part in a step means for versions; returns that of the rows which it has made."""
        work, owner = sent.step.work, owner_of(state, self._calls)
        call = self._calls[state.function.name] if state.function is not None else None
        if isinstance(work, Hook):
            self._versions.moved(done.result.ticket, transfers(work, owner), done.worker)
        elif call is not None and state.taken is not None:
            if call.trains and state.taken.ends_step:
                self._versions.trained(call, state.taken.step, done.worker)
            if call.interface_type is Interface.GENERATE and owner is not None:
                return self._versions.of(owner, done.worker)
        return None

    def _use(self, state: CallState, sent: SentStep) -> None:
        """Take what all parts of a step have brought."""
        work, role = sent.step.work, owner_of(state, self._calls)
        call = self._calls[state.function.name] if state.function is not None else None
        if isinstance(work, Hook):
            if isinstance(work, LoadRows):
                self._loaded += sent.done
            numbers = sent.numbers(work.roles[0] if work.roles else role)
            twice = sorted(numbers.keys() & state.numbers.keys())
            if twice and isinstance(work, Evaluate):  # the loads of a common save report a step each
                raise FlowError(
                    f"it reports {', '.join(twice)}, which the call has reported before; use other names"
                )
            state.numbers |= numbers
        elif call is not None and state.taken is not None:
            sent.check()
            self._use_main(call, state, state.taken, sent)

    def _use_main(self, call: MFCDef, state: CallState, taken: Taken, sent: SentStep) -> None:
        role = owner_of(state, self._calls)
        made, rows = sent.made(role), self.master.rows
        if not made:
            return  # no row was left
        # Others may have dropped rows before it began.
        own = {row_id for done in made for row_id in done.result.ids}
        state.ids = tuple(row_id for row_id in taken.ids if row_id in own)
        state.numbers |= sent.numbers(role)
        state.digest = sent.digest(role)
        state.not_finite = sent.not_finite()
        current = set(rows.current(call.name, taken))
        for done in made:
            columns = done.result.columns.places
            if set(columns) != set(call.output_keys):
                raise FlowError(f"columns {', '.join(columns)} arrived; need {', '.join(call.output_keys)}")
            for column, places in columns.items():
                self.forms.check(call.partition, column, forms_of(places), done.result.ids, call.name)
        for done in made:
            result, ids = done.result, done.result.ids
            frees = self.master.wrote(
                state.number,
                done.worker,
                ids,
                result.columns.places,
                n_bytes=result.n_bytes // len(ids),
                version=sent.version,
            )
            self._backend.free(frees)
            for row_id, tags in result.tags.items():
                if row_id in current:
                    rows.tags(row_id).update(tags)
        for done in made:
            self._drop(done.result.dropped, done.result.failed, current)
        if call.trains:
            now = time.monotonic()
            if self.trained_s is not None:
                self.waited_s.setdefault(taken.step, max(now - sent.seconds - self.trained_s, 0.0))
            self.trained_s, self.age = now, taken.age

    def _drop(self, dropped: Mapping[int, str], failed: Mapping[int, str], current: set[int]) -> None:
        for reasons in (dropped, failed):
            for row_id, reason in reasons.items():
                if row_id not in current or row_id not in self.master.rows:
                    continue
                label = "failed" if reasons is failed else reason
                try:
                    n = self.master.rows.drop([row_id], label)
                except ValueError as error:
                    if reasons is dropped and self.master.rows.is_hit(row_id):
                        continue  # it was not dropped the first time, and has been trained with
                    raise FlowError(str(error)) from None
                if reasons is failed and n:
                    self.n_failed += n
                    self.last_failure = reason

    def _end_if_complete(self, sent: SentStep) -> None:
        if not sent.step.missing:
            del self._sent[sent.step.ticket]
            self._versions.ended(sent.step.ticket)
            self._moves.ended(sent.step.ticket)
            self._backend.free(self.held.unpin(sent.ids))

    def _may_run_again(self, sent: SentStep, state: CallState) -> bool:
        """Return whether a call that could not read its rows may run again.

        No worker of its role has entered the function. Rows have been lost since it was sent, so the next one reads
        others. Hooks before a training call must have ended: they do not run again.
        """
        if sent.n_disturbed == self.master.rows.n_disturbed or state.function is None:
            return False
        kinds = [self._sent[ticket].step.kind for ticket in state.open]
        return not state.function.is_strict or Kind.PRE not in kinds

    def _lose(self, lost: Lost) -> None:
        """A worker is gone: its calls are answered. The flow goes on if it is started again."""
        inside = [one for _, one in sorted(self._sent.items()) if lost.worker in one.step.missing]
        reason = f"worker {lost.worker} is lost: {lost.reason}; {open_there(inside, self.master.calls)}"
        if is_repeated := self.ends.note(lost.worker, lost.reason, inside):
            reason += "; the process before it has ended there in the same way, so it is not started again"
        if (lost.returns and not is_repeated) or self.recovery.goes_on_without(lost.worker):
            fatal = dict.fromkeys(self.ends.fatal_rows(inside, self.master.calls), reason)
            self._drop({}, fatal, set(fatal))
            self.recovery.lose(lost.worker, reason)
            self.datasets.lose(lost.worker)
        else:
            self.recovery.give_up(lost.worker)
            self.lost = self.lost or FlowError(reason)
            for one in inside:
                state = self.master.calls.get(one.step.call)
                if state is not None and state.error is None:
                    # What its peers say of the end of a connection comes later, and says less.
                    state.error = FlowError(f"call {state.number} of {state.name} failed: {reason}")
                for done in one.clear():
                    self._drop_made(done)
            self.master.order.lose(lost.worker, reason)
        for one in inside:
            self._end_if_complete(one)

    def _end(self, state: CallState) -> None:
        self.answered_s = time.monotonic()
        if self._moves.followed(state.number):
            return
        if state.number in self.master.repeated:
            self.master.repeated.discard(state.number)
            if state.reason is not None:
                return  # its rows are for another call
        if self.recovery.is_own(state) and self.recovery.ended(state):
            return
        if state.reason is not None:
            error = state.error or FlowError(f"call {state.number} of {state.name} failed: {state.reason}")
            self.errors[state.number] = error, state.cause
            return
        taken = state.taken
        result = CallResult(
            state.name,
            state.ids,
            taken.step if taken is not None else 0,
            taken.age if taken is not None else 0,
            state.numbers,
            state.seconds,
            state.digest,
            state.not_finite,
        )
        for text in self.not_finite.observe(result):
            logger.warning("%s", text)
        if state.is_posted:
            if state.number not in self._of_journal:
                self.recovery.noted(one.work for one in state.steps if isinstance(one.work, Hook))
            self._of_journal.discard(state.number)
            self.posted[state.number] = result
        else:
            self.results.append(result)
        for step in self._moves.follow(state, result):
            number = self.master.post_steps("data_transfer", (step,), time.monotonic())
            self._moves.begun(number)
            self.master.order.flush([number])

    # --- Steps of calls ---

    def _steps_of(self, function: FunctionPlan, taken: Taken) -> tuple[Step, ...]:
        return steps_of(self._calls[function.name], function, taken, brings=self.held.has_nodes)
