"""One opening of a flow: it runs, is saved, and goes on from its last common save."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ...errors import ConfigError, FlowError
from ...process import check_process
from ...user_code import text_of_error
from ..declare.calls import TRAIN
from ..declare.declaration import Declaration
from ..declare.hooks import Hook, Load, Offload
from ..declare.plan import FlowPlan
from ..engine.admission import Admission, Sources
from ..engine.ends import Ends
from ..engine.explain import explain
from ..engine.results import CallResult, FlowStep
from ..engine.row_moves import participants
from ..engine.runner import Runner
from ..journal.saves import CommonSaves
from ..master.master import TooOld
from ..master.order.steps import Kind, Step
from ..watch.options import WatchOptions
from ..watch.watch import Watch
from ..workers.backend import Backend, WaitInterrupted

__all__ = ["Session", "Settings", "StepStopped"]

logger = logging.getLogger(__name__)

#: How long one wait for worker processes is where it may be stopped, seconds.
_SLICE_S = 0.1


class StepStopped(FlowError):
    """A step that is awaited no more has stopped between two events; the next one goes on there."""


@dataclass(frozen=True)
class Settings:
    """What all openings of a flow have in common.

    Attributes:
        name: Name of the flow, as `softs-fast top` shows it.
        plan: Plan of the flow.
        declaration: Declaration of the flow.
        sources: Sources, which go on behind what was read of them.
        max_failed: See `Flow`.
        max_bytes: See `Flow`.
        watch: Options of deadlines, reports and traces.
        saves: Common saves; None: there is no journal.
    """

    name: str
    plan: FlowPlan
    declaration: Declaration
    sources: Sources
    max_failed: int
    max_bytes: int | None
    watch: WatchOptions
    saves: CommonSaves | None


class Session:
    """One opening of a flow. When it goes back to a common save, it has another runner.

    Args:
        settings: Settings of the flow.
        backend: Backend that runs the steps.

    Attributes:
        settings: Settings of the flow.
        backend: Backend that runs the steps.
        calls: Functions of the flow, by name.
        runner: Runner since the session has begun, or has gone back.
        admission: Admission of rows to that runner.
        is_open: Whether the objects of all roles are there.
        n_steps: Number of steps that were complete, or the last ones of their source.
        late: Step that was complete when it was awaited no more; the next one that is asked for.
        is_stopping: Returns whether what the calling thread does is awaited no more, given whether workers are started;
            None: all is awaited to its end.
    """

    def __init__(self, settings: Settings, backend: Backend) -> None:
        self.settings, self.backend = settings, backend
        self.calls = {one.name: one for one in settings.declaration.calls}
        self.is_open = False
        self.n_steps = 0
        self.late: FlowStep | None = None
        self.is_stopping: Callable[[bool], bool] | None = None
        self._saves = settings.saves
        self._is_beginning = False
        self._pid = os.getpid()
        self._ends = Ends()
        self._error: FlowError | None = None
        self._watch: Watch | None = None
        self._renew()

    def _renew(self) -> None:
        """Have a new master, and no rows."""
        settings = self.settings
        self.runner = Runner(
            settings.plan, settings.declaration, self.backend, self._ends, settings.watch.deadline_s
        )
        self.admission = Admission(settings.sources, settings.plan, self.runner, settings.max_bytes)
        if self._saves is not None:
            self._saves.attach(self.runner, self.admission, self.backend)
        if self._watch is not None:
            self._watch.follow(self.runner)

    # --- Life ---

    def open(self) -> None:
        """Make the objects of all roles, and go on from the last common save; if that fails, it is closed.

        Raises:
            ConfigError: see `Flow.initialize`.
            FlowError: see `Flow.initialize`.
        """
        try:
            if self._saves is not None:
                self._saves.open()
            self._begin()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Drop all rows and the objects of all roles; idempotent."""
        if self.is_open:
            self.is_open = False
            if os.getpid() != self._pid:
                return  # processes, threads and files are those of the process that has opened it
            watch, self._watch = self._watch, None
            if watch is not None:
                watch.close()
            self._drop_rows()
            self.backend.close()
        if self._saves is not None:
            self._saves.close()

    def check_open(self) -> None:
        """Check that it can be used here.

        Raises:
            ConfigError: it is not open, or another process has opened it.
        """
        if not self.is_open:
            raise ConfigError("the flow is not open; use it in a `with` block, or call initialize()")
        check_process(self._pid, "the flow")

    def _begin(self) -> None:
        """Make the objects of all roles, and have them and the master go on from the last common save, if there is one.

        Raises:
            FlowError: a worker process could not begin, or the save cannot be loaded.
        """
        self._is_beginning = True
        try:
            first = self.backend.open(self.runner.held)
            self.is_open = True
            if self._watch is None:
                self._watch = Watch(self.settings.name, self.settings.watch, self.runner, self.backend)
            self._watch.begun()
            self._run_hooks(first)
            if self._saves is not None:
                self._load_save(self._saves)
        finally:
            self._is_beginning = False

    def _load_save(self, saves: CommonSaves) -> None:
        steps = saves.load_steps()
        if steps:
            name = "load of a common save"
            self.answer(self.runner, self.runner.post_steps(name, steps), name)
            self._run_hooks(saves.hooks_behind())
        saves.restore()
        self.n_steps = saves.last.step if saves.last is not None else 0

    def _run_hooks(self, hooks: Sequence[Hook]) -> None:
        numbers = [(self.post_hook(one), one.name) for one in hooks]
        self.runner.master.order.flush(number for number, _ in numbers)
        for number, name in numbers:
            self.answer(self.runner, number, name)

    def _may_go_back(self) -> bool:
        """Return whether all workers may be started again."""
        may_go_back = self._saves is not None and self._saves.machine.may_go_back
        return may_go_back and not self._is_beginning and not self._ends.is_repeated

    def _go_back(self, lost: FlowError) -> None:
        """Start all workers again, and go on from the last common save.

        Args:
            lost: names the worker that was lost.

        Raises:
            FlowError: workers were lost again and again.
        """
        assert self._saves is not None
        while True:
            self._saves.count_restart(lost, self.n_steps)
            self._drop_rows()
            self.backend.close(goes_on=True)
            self._saves.drop_begun()
            self._renew()
            self._error = None
            try:
                self._begin()
                return
            except StepStopped:
                raise  # the flow is closed now
            except FlowError as error:
                self._error = lost = error
                if not self._may_go_back():
                    raise

    def _drop_rows(self) -> None:
        if self._saves is not None:
            self._saves.stop_rows()
        self.runner.held.clear()

    # --- Steps ---

    def end_of(self, n: int | None) -> int | None:
        """Return the number of the last of so many steps from now on; None if they have no end.

        With a journal those that were asked for before count from the first one on, so that a program that is started
        again goes on where it was.
        """
        if n is None:
            return None
        return n + (self._saves.asked if self._saves is not None else self._n_returned)

    def next_step(self, end: int | None = None) -> FlowStep | None:
        """Run until a step is complete.

        Args:
            end: Number of the last step that is wanted, see `end_of`.

        Returns:
            The step; None behind the last one, and at the end of the source.

        Raises:
            FlowError: see `Flow.steps`.
            ConfigError: it is not open.
        """
        if end is not None and self._n_returned >= end:
            return None
        if self.late is not None:
            step, self.late = self.late, None
            return step
        self.check_open()
        with self.backend.doing.flow():
            while self.runner.master.rows.counts[TRAIN].complete <= self.n_steps:
                if not self.turn(automatic=True):
                    master = self.runner.master
                    if master.is_over(TRAIN) and not master.rows.n_groups(TRAIN):
                        return self._step(is_complete=False) if self._has_rest() else None
                    raise FlowError(f"the flow cannot go on:\n{self.explain()}")
            self._save()
            return self._step(is_complete=True)

    def returned(self, number: int) -> None:
        """The caller of the flow has been given a step, or all that it has asked for up to there."""
        if self._saves is not None:
            self._saves.asked = max(self._saves.asked, number)

    def finish(self, end: int | None) -> None:
        """The caller has the steps that it has asked for: wait for a common save that was begun.

        Not for one of a step that is complete and was not returned yet.

        Args:
            end: See `end_of`.
        """
        self.returned(end or 0)
        while self._saves is not None and self._saves.is_open:
            if not self.turn(automatic=False):
                return

    @property
    def _n_returned(self) -> int:
        return self.n_steps - (self.late is not None)

    def _has_rest(self) -> bool:
        """Return whether the source has ended within a step in which a function has trained, or none does in this flow.

        All rows of it may have been dropped. Then there is no step: a loop that reads what training has reported finds it in each one.
        """
        runner = self.runner
        training = {
            one.name for one in self.settings.plan.functions if one.is_strict and one.partition == TRAIN
        }
        if not training or any(
            one.function in training or self.calls[one.function].partition != TRAIN for one in runner.results
        ):
            return bool(runner.results)
        runner.results = []
        said = self._watch.dropped() if self._watch is not None else ""
        if said:
            logger.warning("the source has ended, and no row is left to train with: %s", said)
        return False

    def _step(self, *, is_complete: bool) -> FlowStep:
        runner, number = self.runner, self.n_steps
        self.n_steps += 1
        calls: list[CallResult] = []
        later: list[CallResult] = []
        for one in runner.results:
            is_due = one.step <= number or self.calls[one.function].partition != TRAIN
            (calls if is_due else later).append(one)
        runner.results = later
        trained = [one for one in calls if self.calls[one.function].partition == TRAIN]
        n_rows = max((self._n_rows(name, trained) for name in self.calls), default=0)
        dropped = dict(runner.master.rows.counts[TRAIN].dropped)
        is_repeated = self._saves is not None and self._saves.note_yielded(number + 1)
        waited_s = runner.waited_s.pop(number, 0.0)
        return FlowStep(number + 1, tuple(calls), n_rows, is_complete, waited_s, dropped, is_repeated)

    def _n_rows(self, function: str, calls: Sequence[CallResult]) -> int:
        """Return how many rows a function had; those that it has made again count once."""
        own = [one.ids for one in calls if one.function == function]
        is_used_again = self.calls[function].reuse > 1
        return sum(len(ids) for ids in own) if is_used_again else len(set().union(*own))

    # --- Calls by hand ---

    def post_hook(self, hook: Hook) -> int:
        """Post a hook; returns the number of its call, which waits for a flush.

        Raises:
            ConfigError: it has no role, or cannot run where its roles are.
        """
        if not hook.roles:
            raise ConfigError(f"hook {hook.name} is posted without a role")
        hooks = [hook]
        if isinstance(hook, (Load, Offload)):  # each replica of a pool has its part
            hooks = [replace(hook, roles=(role,)) for role in hook.roles[0].replicas] or hooks
        roles = [role for one in hooks for role in one.roles]
        unknown = [role.name for role in roles if role not in self.settings.declaration.roles]
        if unknown:
            raise ConfigError(f"hook {hook.name} has roles that are not in the flow: {', '.join(unknown)}")
        self.backend.check_hook(hook, None)
        present = [(participants(one, None) - self.runner.recovery.gone, one) for one in hooks]
        steps = tuple(Step(Kind.MAIN, workers, one) for workers, one in present if workers)
        number = self.runner.master.post_steps(hook.name, steps, time.monotonic())
        self.runner.posted[number] = None
        return number

    def answer(self, runner: Runner, number: int, name: str, timeout_s: float | None = None) -> CallResult:
        """Run what has tickets until a posted call is answered; returns what it has done, once.

        Args:
            runner: Runner that had the call.
            number: Number of the call.
            name: Name of its function or hook.
            timeout_s: See `PostedCall.result`.

        Raises:
            FlowError: see `PostedCall.result`.
            TimeoutError: it has no answer yet.
        """
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        has_turned = False
        while True:
            if runner is self.runner:
                if number in runner.errors:
                    error, cause = runner.errors[number]
                    raise error from cause
                result = runner.posted[number]
                if result is not None:
                    del runner.posted[number]
                    return result
            if not self.has(runner):
                raise FlowError(
                    f"call {number} of {name} has no answer: the flow has gone back to a common save, or was closed"
                )
            left_s = None if end_s is None else max(end_s - time.monotonic(), 0.0)
            if left_s == 0 and has_turned:
                raise TimeoutError(
                    f"call {number} of {name} has no answer after {timeout_s:g} s\n{self.explain()}"
                )
            try:
                acted, has_turned = self.turn(automatic=False, timeout_s=left_s), True
            except FlowError:
                if number in runner.errors:
                    continue  # its own answer says more
                raise
            if not acted:
                raise FlowError(
                    f"call {number} of {name} has no result; has a flush named it?\n{self.explain()}"
                )

    def has(self, runner: Runner) -> bool:
        """Return whether calls of a runner can have answers."""
        return self.is_open and runner is self.runner

    def explain(self) -> str:
        """Return what `Flow.explain` does."""
        now_s = time.monotonic()
        return explain(self.runner.master, now_s) + self.runner.datasets.explain(now_s)

    # --- Inside ---

    def turn(self, *, automatic: bool, timeout_s: float | None = None) -> bool:
        """Do one thing; returns False if there is nothing to do.

        Args:
            automatic: Whether functions take what is ready; otherwise only posted calls run.
            timeout_s: How long to wait for worker processes; None: as long as it takes.

        Raises:
            FlowError: the flow cannot go on, or a function failed.
            StepStopped: what the thread does is awaited no more.
        """
        if self.is_stopping is not None:
            if self.is_stopping(self._is_beginning):
                raise StepStopped("the step is awaited no more")
            timeout_s = _SLICE_S if timeout_s is None else min(timeout_s, _SLICE_S)
        if self._error is not None:
            raise self._error
        if automatic or (self._saves is not None and self._saves.is_open):
            self._save()
        runner, doing = self.runner, self.backend.doing
        with self._sticky("the source of rows", Exception), doing.what("reads the source of rows"):
            admitted = automatic and self.admission.fill()
        watch = self._watch
        if watch is not None:
            timeout_s = watch.limit(timeout_s)
        try:
            with self._sticky("a step", WaitInterrupted), doing.what("waits for workers"):
                acted = runner.advance(automatic=automatic, timeout_s=timeout_s)
        except WaitInterrupted:
            # Only a program that ends by this type itself, not one derived from it, ends as by SIGINT: with 130 in a shell.
            raise KeyboardInterrupt from None
        except (TooOld, ValueError) as error:
            # Rows that were taken are in no call: the flow would go on without them.
            self._error = FlowError(str(error))
            raise self._error from error
        if runner.lost is not None and self._may_go_back():
            with self._sticky("the start of all workers"):
                self._go_back(runner.lost)
            return True
        self._error = runner.lost
        if self._error is None and watch is not None:
            self._error = watch.error()
        for number in [number for number in runner.errors if number not in runner.posted]:
            failed, cause = runner.errors.pop(number)
            if self._error is None:
                self._error = failed
                raise failed from cause
        if self._error is not None:
            raise self._error
        if runner.n_failed > self.settings.max_failed:
            self._error = FlowError(
                f"{runner.n_failed} groups have failed and max_failed is {self.settings.max_failed}; the last: "
                f"{runner.last_failure}"
            )
            raise self._error
        return acted or admitted

    @contextlib.contextmanager
    def _sticky(self, what: str, *harmless: type[BaseException]) -> Iterator[None]:
        """Have the flow go on no more if this is cut short, as by Ctrl-C: what had been taken is never answered."""
        try:
            yield
        except harmless:
            raise
        except BaseException as error:
            text = f"{what} was interrupted by {text_of_error(error)}; the flow cannot go on: close it, and open it again"
            self._error = error if isinstance(error, FlowError) else FlowError(text)
            raise

    def _save(self) -> None:
        """Begin or end a common save, if it is time."""
        if self._saves is not None and not self._is_beginning:
            try:
                self._saves.advance(self.n_steps)
            except FlowError as error:
                self._error = error
                raise
