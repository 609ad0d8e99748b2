"""A flow: functions of models on rows, in the order that their columns allow."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from ...errors import ConfigError, FlowError
from ...fleet.factory import NamedFactory
from ...user_code import text_of_error
from ..declare.calls import TRAIN, MFCDef
from ..declare.capacity import plan_of
from ..declare.datasets import check_read
from ..declare.declaration import Declaration
from ..declare.graph import graph_of
from ..declare.plan import FlowPlan
from ..declare.roles import Placement
from ..engine.admission import Admission, Source, Sources
from ..engine.ends import Ends
from ..engine.results import CallResult, FlowStep
from ..engine.runner import Runner
from ..journal.options import Journal
from ..journal.saves import CommonSaves
from ..master.master import TooOld
from ..process.worker import Argument, arguments_of
from ..watch.drops import DropWatch
from ..watch.options import OnStall, WatchOptions
from ..watch.watch import Watch
from ..workers.backend import Backend, WaitInterrupted
from ..workers.fleet_processes import FleetProcesses
from ..workers.host_processes import HostOptions, HostProcesses
from ..workers.local import LocalBackend
from ..workers.processes import ProcessBackend
from .posted import PostedCall
from .starts import StartedFlow

__all__ = ["Flow", "PostedCall"]

logger = logging.getLogger(__name__)


class Flow(StartedFlow):
    """Functions of models on rows; all in this process, or see `in_processes`. Edges follow from columns.

    `with` makes the objects of all roles (`setup`); `steps` runs. The same seeds give the same bits.

    Args:
        calls: Functions of the flow.
        source: Rows, as dicts of the columns that the source has, or a `dataset` that workers read; or by partition.
        group: Rows that are made of each element of the source, and stay together.
        max_age: Largest age, in steps, of rows that a training function gets; 0 is synchronous.
        ahead: Steps of rows that may be begun before the step before them is complete; default: as many as `max_age` and
            `window` admit.
        window: Number of groups, from the oldest on, among which training functions choose those that are ready
            first.
        max_failed: Groups that may fail (`Rows.fail`) before the flow fails.
        max_bytes: Bytes of rows in the flow beyond which no new ones are admitted, an estimate; those that are there go on.
            None: half of what /dev/shm has free when the flow opens, on the host with the least; no limit in one process,
            where rows are not there. See docs/dataflow_failures.md, "Bytes of stores".
        digests: Whether each call gets a digest of its inputs.
        journal: Journal, or its folder, in which the flow is saved, so that it continues after the death of this
            process or of a worker.
        deadline_s: How long a step may be with a worker process, which is ended then; None: any time. `df.call` has one, too.
            In one process nothing can end a function.
        watchdog_s: Seconds without the end of a call after which a warning says what the flow waits for; again after
            intervals that double. None: never.
        on_stall: "warn", or "abort": then a FlowError with that text is raised, too, as soon as no function of this process
            runs. Groups of ten steps that were dropped within one step are a stall, too.
        trace: File for ui.perfetto.dev: what ran where and when.

    Raises:
        ConfigError: the functions, columns or numbers can never be a flow; nothing has run then.

    Attributes:
        plan: Plan of the flow, as it was decided.
    """

    def __init__(
        self,
        calls: Sequence[MFCDef],
        *,
        source: Source | Mapping[str, Source],
        group: int = 1,
        max_age: int = 0,
        ahead: int | None = None,
        window: int = 1,
        max_failed: int = 0,
        max_bytes: int | None = None,
        digests: bool = False,
        journal: Journal | str | Path | None = None,
        deadline_s: float | None = None,
        watchdog_s: float | None = 60.0,
        on_stall: OnStall = "warn",
        trace: str | Path | None = None,
    ) -> None:
        if max_failed < 0 or (max_bytes is not None and max_bytes < 1):
            raise ConfigError(f"max_failed is {max_failed} and max_bytes {max_bytes}; need at least 0 and 1")
        sources = Sources(source)
        order, read = graph_of(calls, sources.columns)
        check_read(sources.datasets, read)
        if TRAIN not in read:
            raise ConfigError(f"no function works on partition {TRAIN!r}")
        self.plan: FlowPlan = plan_of(order, read, group=group, max_age=max_age, ahead=ahead, window=window)
        self.declaration = Declaration(tuple(calls), group, digests, sources.datasets)
        self._sources = sources
        self._calls = {one.name: one for one in calls}
        self._max_failed, self._max_bytes = max_failed, max_bytes
        self._options = WatchOptions(deadline_s, watchdog_s, on_stall, trace)
        self._watch: Watch | None = None
        self._name = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
        self._n_steps = 0
        self._is_open = False
        self._pid = os.getpid()
        self._ends = Ends()
        self._error: FlowError | None = None
        self._saves: CommonSaves | None = None
        if journal is not None:
            options = journal if isinstance(journal, Journal) else Journal(journal)
            self._saves = CommonSaves(options, self.declaration, self.plan, sources)
        # Of `steps` with a journal: how many steps its callers have asked for.
        self._asked = 0
        # Roles without weights in a save that were loaded by hand, and from where.
        self._loaded: dict[Placement, Path] = {}
        self._is_beginning = False
        self._use(LocalBackend(self.declaration))

    @classmethod
    def in_processes(
        cls,
        function: str,
        arguments: Mapping[str, Argument] | None = None,
        *,
        start_timeout_s: float = 120.0,
        max_restarts: int = 5,
    ) -> Flow:
        """Return a flow of which each worker is a process of its own; this one is the master.

        The function is called here and in each worker, and returns a `Flow`. Only here its source is read, but for the
        first element, unless workers read a dataset. Rows and weights stay in shared memory of the processes that have made them.

        Args:
            function: "package.module:function", importable in all processes.
            arguments: Arguments of the function in each process.
            start_timeout_s: How long the workers may take until their roles are made.
            max_restarts: Failures in a row after which a worker is not started again, if nothing of its roles is lost
                with its process; the pauses between double from 0.5 s on. See docs/dataflow_failures.md, "Recovery".

        Raises:
            ConfigError: `max_restarts` is below 0, there is no such function, it returns no flow, or a hook needs objects
                of different workers.
        """
        if max_restarts < 0:
            raise ConfigError(f"max_restarts is {max_restarts}; it counts failures in a row, from 0")
        given = arguments_of(arguments or {})
        flow = NamedFactory(function).load()(**given)
        if not isinstance(flow, cls):
            raise ConfigError(f"{function} returned a {type(flow).__name__}; need a Flow that is not open")
        processes = FleetProcesses(function, given, flow.declaration, start_timeout_s, max_restarts)
        flow._use(ProcessBackend(flow.declaration, processes))
        flow._name = function
        return flow

    @classmethod
    def on_hosts(
        cls,
        function: str,
        arguments: Mapping[str, Argument] | None = None,
        *,
        listen: str,
        token_file: str | Path,
        start_timeout_s: float = 600.0,
        lost_after_s: float = 30.0,
        rejoin_timeout_s: float = 300.0,
        max_restarts: int = 5,
        allow_insecure: bool = False,
    ) -> Flow:
        """Return a flow of which a launcher starts each worker, as `softs-fast flow worker`; this one is the master.

        `with` waits for the workers. Inside a host rows and weights stay in shared memory; a host gets each value from
        another one at most once.

        Args:
            function: "package.module:function", importable in all processes.
            arguments: Arguments of the function; workers are given the same.
            listen: Endpoint that workers connect to, such as `tcp://0.0.0.0:4711`.
            token_file: File with the token by which workers prove that they belong to the flow; mode 0600, see
                `softs_fast.trust.write_token`.
            start_timeout_s: How long the workers may take until their roles are made.
            lost_after_s: Seconds without a sign of life after which a worker on another host has left.
            rejoin_timeout_s: How long the flow waits for another process of a worker that has left, until that has made its
                roles: the launcher starts it, or it begins again by itself. 0: a worker that has left is lost.
            max_restarts: Failures in a row after which a worker is lost, as in `in_processes`; there are no pauses.
            allow_insecure: Connect the processes of roles on several workers, although torch checks no token:
                all machines of the network are trusted. It need not be said if `listen` is on loopback.

        Raises:
            ConfigError: as `in_processes`; the endpoint or the token file cannot be used; or
                `allow_insecure` is needed.
        """
        given = arguments_of(arguments or {})
        flow = NamedFactory(function).load()(**given)
        if not isinstance(flow, cls):
            raise ConfigError(f"{function} returned a {type(flow).__name__}; need a Flow that is not open")
        options = HostOptions(
            listen,
            Path(token_file),
            start_timeout_s,
            lost_after_s,
            rejoin_timeout_s,
            max_restarts,
            allow_insecure,
        )
        processes = HostProcesses(flow.declaration, options)
        flow._use(ProcessBackend(flow.declaration, processes, processes))
        return flow

    def _use(self, backend: Backend) -> None:
        self._backend = backend
        self._runner = Runner(self.plan, self.declaration, backend, self._ends, self._options.deadline_s)
        self._admission = Admission(self._sources, self.plan, self._runner, self._max_bytes)
        self._drops = DropWatch(self.plan.partitions[TRAIN].groups_per_step)
        if self._saves is not None:
            self._saves.attach(self._runner, self._admission, backend)
        if self._watch is not None:
            self._watch.follow(self._runner)

    # --- Life ---

    def initialize(self) -> Self:
        """Make the objects of all roles; `with` calls it.

        A flow that was open before begins anew: from its last common save or, without a journal, with new objects and
        step 1. Sources go on behind what was read of them; rows that were not used up then are dropped without a journal.

        Raises:
            ConfigError: the journal is in use, of another flow, or without what this object has saved there.
            FlowError: a worker process could not begin, or the last common save cannot be loaded.
        """
        if not self._is_open:
            try:
                self._error, self._n_steps, self._pid = None, 0, os.getpid()
                self._ends = Ends()
                self._use(self._backend)  # without what was there before a reset
                if self._saves is not None:
                    self._saves.open()
                self._begin()
            except BaseException:
                self.reset()
                raise
        return self

    def reset(self) -> None:
        """Drop all rows and the objects of all roles; roles with a method `close` are closed. `with` calls it at its end."""
        if self._is_open:
            self._is_open = False
            if os.getpid() != self._pid:
                return  # processes, threads and files are those of the process that has opened it
            watch, self._watch = self._watch, None
            if watch is not None:
                watch.close()
            if self._saves is not None:
                self._saves.stop_rows()
            self._runner.held.clear()
            self._backend.close()
        if self._saves is not None:
            self._saves.close()

    def __enter__(self) -> Self:
        return self.initialize()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.reset()

    # --- Steps ---

    @property
    def age_bound(self) -> int:
        """Largest age that rows of a training function can have, in steps; it is proven, see docs/dataflow.md."""
        return self.plan.partitions[TRAIN].age_bound

    def steps(self, n: int | None = None) -> Iterator[FlowStep]:
        """Run, and yield each step when it is complete.

        Args:
            n: how many; None runs until the source ends. With a journal, steps that were done before this process began
                count, too: the same program goes on where it was.

        Raises:
            FlowError: a function failed, with its traceback and its rows, or the flow cannot go on.
        """
        begin = self._n_steps if self._saves is None else self._asked
        end = None if n is None else begin + n
        while end is None or self._n_steps < end:
            step = self._next_step()
            if step is None:
                break
            self._asked = max(self._asked, step.number)
            yield step
        self._asked = max(self._asked, end or 0)
        self._end_saves()

    def _next_step(self) -> FlowStep | None:
        with self._backend.doing.flow():
            return self._run_step()

    def _run_step(self) -> FlowStep | None:
        self._check_open()
        while self._runner.master.rows.counts[TRAIN].complete <= self._n_steps:
            self._check_stop()
            if not self._turn(automatic=True, timeout_s=self._slice_s):
                master = self._runner.master
                if master.is_over(TRAIN) and not master.rows.n_groups(TRAIN):
                    return self._step(is_complete=False) if self._has_rest() else None
                raise FlowError(f"the flow cannot go on:\n{self.explain()}")
        self._save()
        return self._step(is_complete=True)

    def _has_rest(self) -> bool:
        """Return whether the source has ended within a step in which a function has trained, or none does in this flow.

        All rows of it may have been dropped. Then there is no step: a loop that reads what training has reported finds it in each one.
        """
        runner = self._runner
        training = {one.name for one in self.plan.functions if one.is_strict and one.partition == TRAIN}
        if not training or any(
            one.function in training or self._calls[one.function].partition != TRAIN for one in runner.results
        ):
            return bool(runner.results)
        runner.results = []
        said = self._drops.since(runner.master.rows.counts[TRAIN].dropped)
        if said:
            logger.warning("the source has ended, and no row is left to train with: %s", said)
        return False

    def _step(self, *, is_complete: bool) -> FlowStep:
        runner, number = self._runner, self._n_steps
        self._n_steps += 1
        calls: list[CallResult] = []
        later: list[CallResult] = []
        for one in runner.results:
            is_due = one.step <= number or self._calls[one.function].partition != TRAIN
            (calls if is_due else later).append(one)
        runner.results = later
        trained = [one for one in calls if self._calls[one.function].partition == TRAIN]
        n_rows = max((self._n_rows(name, trained) for name in self._calls), default=0)
        dropped = dict(runner.master.rows.counts[TRAIN].dropped)
        is_repeated = self._saves is not None and self._saves.note_yielded(number + 1)
        waited_s = runner.waited_s.pop(number, 0.0)
        return FlowStep(number + 1, tuple(calls), n_rows, is_complete, waited_s, dropped, is_repeated)

    def _n_rows(self, function: str, calls: Sequence[CallResult]) -> int:
        """Return how many rows a function had; those that it has made again count once."""
        own = [one.ids for one in calls if one.function == function]
        is_used_again = self._calls[function].reuse > 1
        return sum(len(ids) for ids in own) if is_used_again else len(set().union(*own))

    def _turn(self, *, automatic: bool, timeout_s: float | None = None) -> bool:
        """Do one thing; returns False if there is nothing to do."""
        if self._error is not None:
            raise self._error
        if automatic or (self._saves is not None and self._saves.is_open):
            self._save()
        runner, doing = self._runner, self._backend.doing
        with self._sticky("the source of rows", Exception), doing.what("reads the source of rows"):
            admitted = automatic and self._admission.fill()
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
            self._error = watch.error() or self._dropping()
        for number in [number for number in runner.errors if number not in runner.posted]:
            failed, cause = runner.errors.pop(number)
            if self._error is None:
                self._error = failed
                raise failed from cause
        if self._error is not None:
            raise self._error
        if runner.n_failed > self._max_failed:
            self._error = FlowError(
                f"{runner.n_failed} groups have failed and max_failed is {self._max_failed}; the last: {runner.last_failure}"
            )
            raise self._error
        return acted or admitted

    def _dropping(self) -> FlowError | None:
        """Say that groups are dropped and no step is complete; returns an error if a stall ends the flow."""
        counts = self._runner.master.rows.counts[TRAIN]
        text = self._drops.observe(counts.complete, counts.dropped)
        if text is None:
            return None
        logger.warning("%s", text)
        return FlowError(text) if self._options.on_stall == "abort" else None

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
                self._saves.advance(self._n_steps)
            except FlowError as error:
                self._error = error
                raise
