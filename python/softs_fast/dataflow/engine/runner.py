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
from ..master.master import DRIVER, CallState, Master
from ..master.order.steps import Answer, Kind, Order, Step
from ..master.rows.saved import SavedGroup
from ..master.rows.table import Taken
from ..master.versions import Versions
from ..process.functions import Failure, Outcome
from ..process.work import HookWork, MainWork, Work
from ..store.forms import ColumnForms, forms_of
from ..store.values import Value, n_bytes_of
from ..workers.backend import Back, Backend, Done, Loaded, Lost
from .cutting import parts_of
from .dataset_reads import DatasetReads
from .ends import Ends, open_there
from .late_steps import LateSteps
from .merging import Reports
from .not_finite import NotFinite
from .recovery import Recovery
from .results import CallResult
from .row_moves import RowMoves, described, steps_of
from .running import Observer, Running, SentTicket, failure_of, owner_of

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
        self._tickets: dict[int, SentTicket] = {}
        self._running: dict[int, Running] = {}
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
        return bool(self._tickets or self.master.awaited or self.datasets.is_open)

    def _listen(self, *, automatic: bool) -> bool:
        answered, n_complete = False, self._n_complete
        for output in self.master.advance(time.monotonic(), automatic=automatic):
            if isinstance(output, Answer):
                self._end(output)
                answered = True
            elif isinstance(output[1], Order):
                self._send(*output)
            else:
                self._backend.abort(*output)
        self.recovery.count_rows()
        self.free()
        # Without a call a step is complete of which training goes without all rows.
        return answered or self._n_complete > n_complete

    def _send(self, worker: int, order: Order) -> None:
        state = self.master.state(order.call)
        if order.call not in self._running and state is not None:
            self._running[order.call] = Running(state)
        if order.ticket not in self._tickets:
            ids = self._moves.ids_of(order, state)
            self._tickets[order.ticket] = SentTicket(
                order, set(), ids, n_disturbed=self.master.rows.n_disturbed
            )
            self.held.pin(ids)
        self._tickets[order.ticket].missing.add(worker)
        describe = self._work_of(self._running[order.call].state, order, worker)
        has_rows = isinstance(order.step.work, str) or order.step.kind is Kind.MOVE
        function = state.function if state is not None and has_rows else None
        if self._backend.cuts_rows and function is not None and len(order.step.workers) > 1:
            describe = self._cut(self._tickets[order.ticket], function.name, worker, describe)
        if order.step.kind is Kind.MOVE:
            describe = self._moves.inputs(order, self._running[order.call].state, describe)
        self._backend.send(worker, order, describe)

    def _cut(
        self, ticket: SentTicket, function: str, worker: int, describe: Callable[[], Work | None]
    ) -> Callable[[], Work | None]:
        """Return what says what one of several workers has to do."""

        def part() -> Work | None:
            if ticket.parts is None:
                # All have parts of the same rows, also if some are dropped before the last one asks.
                work = describe()
                ticket.parts = (
                    parts_of(work, self._calls[function], self._plan.group)
                    if isinstance(work, MainWork)
                    else {}
                )
            return ticket.parts.get(worker)

        return part

    def _work_of(self, state: CallState, order: Order, worker: int) -> Callable[[], Work | None]:
        """Return what says what is to be done, when it is asked: rows may have been dropped by then.

        Of a step that brings the rows of a main part it is the main part.
        """
        work, function, taken = order.step.work, state.function, state.taken
        if isinstance(work, DataTransfer) and order.step.kind is not Kind.MOVE:
            return self._moves.outputs(worker, order)
        if isinstance(work, Hook) and order.step.kind is not Kind.MOVE:
            owner = owner_of(state, self._calls)
            hook = HookWork(work, owner, taken.step + 1 if taken is not None else 0)
            return lambda: hook
        assert function is not None
        assert taken is not None
        return described(self._calls[function.name], taken, self.master.rows, self.held)

    def _done(self, done: Done) -> None:
        ticket = self._tickets.get(done.ticket)
        if ticket is None or done.worker not in ticket.missing:
            return
        running = self._running.get(ticket.order.call)
        outcome, work = done.outcome, ticket.order.step.work
        if running is None or running.error is not None:
            # The call has failed elsewhere: what this part has made is dropped.
            self._drop_made(done.worker, outcome)
        elif outcome.failure is None:
            ticket.reports.add(done, self._version_at(running.state, done))
            try:
                if ticket.missing == {done.worker}:
                    self._use(running, ticket)
            except FlowError as error:
                outcome = Outcome(failure=Failure.of(error))
        reason = None
        if outcome.failure is not None:
            reason = outcome.failure.reason
            if running is not None and outcome.unread and self._may_run_again(ticket, running.state):
                self.master.unread(ticket.order.call)
            if running is not None and running.error is None:
                where = f" on worker {done.worker}" if len(ticket.order.step.workers) > 1 else ""
                running.error = failure_of(running.state, work, outcome.failure, where)
                running.cause = outcome.failure.cause
            for one in ticket.reports.clear():
                self._drop_made(one.worker, one.outcome)
        elif running is not None:
            if not isinstance(work, Hook):
                running.times.add("data_transfer", done.ticket, outcome.read_s)
            running.times.add(work.name if isinstance(work, Hook) else "main", done.ticket, outcome.seconds)
        if self.observer is not None:
            taken = running.state.taken if running is not None else None
            call = None if isinstance(work, Hook) else self._calls[str(work)]
            self.observer.note(done, ticket.order, call, taken, len(self.master.rows))
            # Rows may have been dropped meanwhile: nothing will read what was made of them.
            self.observer.drop([row_id for row_id in outcome.ids if row_id not in self.master.rows])
        self._part_ended(ticket, done.worker)
        self.master.order.report(done.worker, done.incarnation, done.ticket, reason)

    def _drop_made(self, worker: int, outcome: Outcome) -> None:
        self._backend.free(self.held.note(worker, outcome.ids if outcome.columns else ()))

    def _version_at(self, state: CallState, done: Done) -> int | None:
        """Note what a worker's part in a step means for versions; returns that of the rows which it has made."""
        work, owner = self._tickets[done.ticket].order.step.work, owner_of(state, self._calls)
        call = self._calls[state.function.name] if state.function is not None else None
        if isinstance(work, Hook):
            self._versions.moved(done.ticket, transfers(work, owner), done.worker)
        elif call is not None and state.taken is not None:
            if call.trains and state.taken.ends_step:
                self._versions.trained(call, state.taken.step, done.worker)
            if call.interface_type is Interface.GENERATE and owner is not None:
                return self._versions.of(owner, done.worker)
        return None

    def _use(self, running: Running, ticket: SentTicket) -> None:
        """Take what all parts of a step have brought."""
        state, work, reports = running.state, ticket.order.step.work, ticket.reports
        call = self._calls[state.function.name] if state.function is not None else None
        role = owner_of(state, self._calls)
        if isinstance(work, Hook):
            if isinstance(work, LoadRows):
                self._loaded += reports.done
            numbers = reports.numbers(work.roles[0] if work.roles else role)
            twice = sorted(numbers.keys() & running.numbers.keys())
            if twice and isinstance(work, Evaluate):  # the loads of a common save report a step each
                raise FlowError(
                    f"it reports {', '.join(twice)}, which the call has reported before; use other names"
                )
            running.numbers |= numbers
        elif call is not None and state.taken is not None:
            reports.check(ticket.parts)
            self._use_main(call, state, state.taken, running, reports)

    def _use_main(
        self, call: MFCDef, state: CallState, taken: Taken, running: Running, reports: Reports
    ) -> None:
        role = owner_of(state, self._calls)
        made, rows = reports.made(role), self.master.rows
        if not made:
            return  # no row was left
        # Others may have dropped rows before it began.
        own = {row_id for done in made for row_id in done.outcome.ids}
        running.ids = tuple(row_id for row_id in taken.ids if row_id in own)
        running.numbers |= reports.numbers(role)
        running.digest = reports.digest(role)
        running.not_finite = reports.not_finite()
        current = set(rows.current(call.name, taken))
        for done in made:
            for column, places in done.outcome.columns.items():
                self.forms.check(call.partition, column, forms_of(places), done.outcome.ids, call.name)
        for done in made:
            outcome, ids = done.outcome, done.outcome.ids
            frees = self.master.wrote(
                state.call.number,
                done.worker,
                ids,
                outcome.columns,
                n_bytes=done.n_bytes // len(ids),
                version=reports.version,
            )
            self._backend.free(frees)
            for row_id, tags in outcome.tags.items():
                if row_id in current:
                    rows.tags(row_id).update(tags)
        for done in made:
            self._drop(done.outcome, current)
        if call.trains:
            now = time.monotonic()
            if self.trained_s is not None:
                self.waited_s.setdefault(taken.step, max(now - reports.seconds - self.trained_s, 0.0))
            self.trained_s, self.age = now, taken.age

    def _drop(self, outcome: Outcome, current: set[int]) -> None:
        for dropped in (outcome.dropped, outcome.failed):
            for row_id, reason in dropped.items():
                if row_id not in current or row_id not in self.master.rows:
                    continue
                label = "failed" if dropped is outcome.failed else reason
                try:
                    n = self.master.rows.drop([row_id], label)
                except ValueError as error:
                    if dropped is outcome.dropped and self.master.rows.is_hit(row_id):
                        continue  # it was not dropped the first time, and has been trained with
                    raise FlowError(str(error)) from None
                if dropped is outcome.failed and n:
                    self.n_failed += n
                    self.last_failure = reason

    def _part_ended(self, ticket: SentTicket, worker: int) -> None:
        ticket.missing.discard(worker)
        if not ticket.missing:
            del self._tickets[ticket.order.ticket]
            self._versions.ended(ticket.order.ticket)
            self._moves.ended(ticket.order.ticket)
            self._backend.free(self.held.unpin(ticket.ids))

    def _may_run_again(self, ticket: SentTicket, state: CallState) -> bool:
        """Return whether a call that could not read its rows may run again.

        No worker of its role has entered the function. Rows have been lost since it was sent, so the next one reads
        others. Hooks before a training call must have ended: they do not run again.
        """
        if ticket.n_disturbed == self.master.rows.n_disturbed or state.function is None:
            return False
        own = [one.order.step.kind for one in self._tickets.values() if one.order.call == ticket.order.call]
        return not state.function.is_strict or Kind.PRE not in own

    def _lose(self, lost: Lost) -> None:
        """A worker is gone: its calls are answered. The flow goes on if it is started again."""
        inside = [one for _, one in sorted(self._tickets.items()) if lost.worker in one.missing]
        reason = f"worker {lost.worker} is lost: {lost.reason}; {open_there(inside, self._running)}"
        if is_repeated := self.ends.note(lost.worker, lost.reason, inside):
            reason += "; the process before it has ended there in the same way, so it is not started again"
        if (lost.returns and not is_repeated) or self.recovery.goes_on_without(lost.worker):
            for one in inside:
                self._part_ended(one, lost.worker)
            fatal = dict.fromkeys(self.ends.fatal_rows(inside, self._running), reason)
            self._drop(Outcome(failed=fatal), set(fatal))
            self.recovery.lose(lost.worker, reason)
            self.datasets.lose(lost.worker)
            return
        self.recovery.give_up(lost.worker)
        self.lost = self.lost or FlowError(reason)
        for number in {one.order.call for one in inside} & self._running.keys():
            # What its peers say of the end of a connection comes later, and says less.
            running, name = self._running[number], self._running[number].state.call.name
            running.error = running.error or FlowError(f"call {number} of {name} failed: {reason}")
        for one in inside:
            for done in one.reports.clear():
                self._drop_made(done.worker, done.outcome)
            self._part_ended(one, lost.worker)
        self.master.order.lose(lost.worker, reason)

    def _end(self, answer: Answer) -> None:
        self.answered_s = time.monotonic()
        running = self._running.pop(answer.call, None)
        if self._moves.followed(answer.call):
            return
        state = running.state if running is not None else None
        taken = state.taken if state is not None else None
        if answer.call in self.master.repeated:
            self.master.repeated.discard(answer.call)
            if answer.reason is not None:
                return  # its rows are for another call
        if self.recovery.is_own(answer) and self.recovery.ended(answer):
            return
        if answer.reason is not None:
            error = running.error if running is not None else None
            cause = running.cause if running is not None else None
            self.errors[answer.call] = (
                error or FlowError(f"call {answer.call} of {answer.name} failed: {answer.reason}"),
                cause,
            )
            return
        assert running is not None
        assert state is not None
        result = CallResult(
            answer.name,
            running.ids,
            taken.step if taken is not None else 0,
            taken.age if taken is not None else 0,
            running.numbers,
            running.times.by_name(),
            running.digest,
            running.not_finite,
        )
        for text in self.not_finite.observe(result):
            logger.warning("%s", text)
        if state.is_posted:
            if answer.call not in self._of_journal:
                self.recovery.noted(one.work for one in state.call.steps if isinstance(one.work, Hook))
            self._of_journal.discard(answer.call)
            self.posted[answer.call] = result
        else:
            self.results.append(result)
        for step in self._moves.follow(state, result):
            number = self.master.post_steps("data_transfer", (step,), time.monotonic())
            self._moves.begun(number)
            self.master.order.flush([number])

    # --- Steps of calls ---

    def _steps_of(self, function: FunctionPlan, taken: Taken) -> tuple[Step, ...]:
        return steps_of(self._calls[function.name], function, taken, brings=self.held.has_nodes)
