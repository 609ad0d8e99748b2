"""A flow: functions of models on rows, in the order that their columns allow."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from ...errors import ConfigError
from ...fleet import NamedFactory
from ..declare.calls import TRAIN, MFCDef
from ..declare.capacity import plan_of
from ..declare.datasets import check_read
from ..declare.declaration import Declaration
from ..declare.drawing import drawing
from ..declare.graph import graph_of
from ..declare.hooks import Hook
from ..declare.plan import FlowPlan
from ..declare.roles import Placement, RoleFunction
from ..engine.admission import Source, Sources
from ..engine.results import FlowStep
from ..journal.options import Journal
from ..journal.saves import CommonSaves
from ..process.worker import Argument, arguments_of
from ..store.values import Value
from ..watch.options import OnStall, WatchOptions
from ..workers.backend import Backend
from ..workers.fleet_processes import FleetProcesses
from ..workers.host_processes import HostOptions, HostProcesses
from ..workers.local import LocalBackend
from ..workers.processes import ProcessBackend
from ..workers.ray_processes import RayProcesses
from .aio import FlowThread
from .posted import PostedCall
from .requests import Requests
from .session import Session, Settings

__all__ = ["Flow", "PostedCall"]

_Result = TypeVar("_Result")


class Flow:
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
        saves = None
        if journal is not None:
            options = journal if isinstance(journal, Journal) else Journal(journal)
            saves = CommonSaves(options, self.declaration, self.plan, sources)
        name = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
        watch = WatchOptions(deadline_s, watchdog_s, on_stall, trace)
        self._settings = Settings(
            name, self.plan, self.declaration, sources, max_failed, max_bytes, watch, saves
        )
        self._thread: FlowThread | None = None
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
        flow = cls._made_by(function, given)
        processes = FleetProcesses(function, given, flow.declaration, start_timeout_s, max_restarts)
        flow._settings = replace(flow._settings, name=function)
        flow._use(ProcessBackend(flow.declaration, processes))
        return flow

    @classmethod
    def on_hosts(
        cls,
        function: str,
        arguments: Mapping[str, Argument] | None = None,
        *,
        listen: str,
        token_file: str | Path | None = None,
        start_timeout_s: float = 600.0,
        lost_after_s: float = 30.0,
        rejoin_timeout_s: float = 300.0,
        max_restarts: int = 5,
    ) -> Flow:
        """Return a flow of which a launcher starts each worker, as `softs-fast flow worker`; this one is the master.

        `with` waits for the workers. Inside a host rows and weights stay in shared memory; a host gets each value from
        another one at most once.

        Args:
            function: "package.module:function", importable in all processes.
            arguments: Arguments of the function; workers are given the same.
            listen: Place that workers connect to, such as `tcp://0.0.0.0:4711`, or
                `softs://0.0.0.0:4711/JOB?token_file=FILE`.
            token_file: File with the token by which workers prove that they belong to the flow; mode 0600,
                as ``softs-fast keys new`` makes it. None for that of the place, else of SOFTS_FAST_TOKEN_FILE.
            start_timeout_s: How long the workers may take until their roles are made.
            lost_after_s: Seconds without a sign of life after which a worker on another host has left.
            rejoin_timeout_s: How long the flow waits for another process of a worker that has left, until that has made its
                roles: the launcher starts it, or it begins again by itself. 0: a worker that has left is lost.
            max_restarts: Failures in a row after which a worker is lost, as in `in_processes`; there are no pauses.

        Raises:
            ConfigError: as `in_processes`; the place or the token file cannot be used; or a role is on several workers,
                and torch is older than 2.15.
        """
        flow = cls._made_by(function, arguments_of(arguments or {}))
        options = HostOptions(
            listen,
            None if token_file is None else Path(token_file),
            start_timeout_s,
            lost_after_s,
            rejoin_timeout_s,
            max_restarts,
        )
        processes = HostProcesses(flow.declaration, options)
        flow._use(ProcessBackend(flow.declaration, processes, processes))
        return flow

    @classmethod
    def on_ray(
        cls,
        function: str,
        arguments: Mapping[str, Argument] | None = None,
        *,
        resources: Mapping[int, Mapping[str, float]] | None = None,
        start_timeout_s: float = 600.0,
        lost_after_s: float = 30.0,
        rejoin_timeout_s: float = 300.0,
        max_restarts: int = 5,
    ) -> Flow:
        """Return a flow of which Ray places each worker, in an actor, and starts it again elsewhere if it is lost.

        This process is the master, on any node that the others can connect to. All else is as with `on_hosts`.

        Args:
            function: "package.module:function", importable on all nodes.
            arguments: Arguments of the function; workers are given the same.
            resources: Resources that Ray reserves for each worker, such as ``{0: {"GPU": 1}, 1: {"CPU": 4}}``; a CPU for
                a worker that has none here.
            start_timeout_s: As with `on_hosts`, as are the others.
            lost_after_s: See there.
            rejoin_timeout_s: See there.
            max_restarts: See there.

        Raises:
            ConfigError: as `on_hosts`; or Ray is not installed, or refuses the resources.
        """
        given = arguments_of(arguments or {})
        flow = cls._made_by(function, given)
        options = HostOptions(
            # Both are its own.
            "tcp://127.0.0.1:0",
            None,
            start_timeout_s,
            lost_after_s,
            rejoin_timeout_s,
            max_restarts,
        )
        processes = RayProcesses(function, given, flow.declaration, options, resources or {})
        flow._use(ProcessBackend(flow.declaration, processes, processes))
        return flow

    @classmethod
    def _made_by(cls, function: str, arguments: Mapping[str, Argument]) -> Flow:
        flow = NamedFactory(function).load()(**arguments)
        if not isinstance(flow, cls):
            raise ConfigError(f"{function} returned a {type(flow).__name__}; need a Flow that is not open")
        return flow

    def _use(self, backend: Backend) -> None:
        """Have a session, which is not open, over a backend."""
        self._backend = backend
        self._session = Session(self._settings, backend)

    # --- Life ---

    def initialize(self) -> Self:
        """Make the objects of all roles; `with` calls it.

        A flow that was open before begins anew: from its last common save or, without a journal, with new objects and
        step 1. Sources go on behind what was read of them; rows that were not used up then are dropped without a journal.

        Raises:
            ConfigError: the journal is in use, of another flow, or without what this object has saved there.
            FlowError: a worker process could not begin, or the last common save cannot be loaded.
        """
        if not self._session.is_open:
            self._use(self._backend)
            self._session.open()
        return self

    def reset(self) -> None:
        """Drop all rows and the objects of all roles; roles with a method `close` are closed. `with` calls it at its end."""
        self._session.close()

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
        session = self._session
        end = session.end_of(n)
        while (step := session.next_step(end)) is not None:
            session.returned(step.number)
            yield step
        session.finish(end)

    # --- Under asyncio ---

    async def __aenter__(self) -> Self:
        if self._thread is not None or self._session.is_open:
            raise ConfigError("the flow is open; it is entered once at a time")
        self._use(self._backend)
        self._thread = FlowThread(self._session)
        try:
            await self._thread.run(self._session.open)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._entered().close()
        finally:
            self._thread = None

    async def step(self) -> FlowStep | None:
        """Run until the next step is complete, while the event loop goes on; None at the end of the source.

        If the task is cancelled, the step stops when the function that runs in this process has returned, and goes on
        with the next call. A step that was complete by then is what the next call returns.

        Raises:
            FlowError: as in `steps`.
            ConfigError: the flow is not open by `async with`, or another task awaits it.
        """
        return await self._entered().step()

    def steps_async(self, n: int | None = None) -> AsyncIterator[FlowStep]:
        """Yield steps as `steps` does, while the event loop goes on.

        Args:
            n: how many; see `steps`.

        Raises:
            FlowError: as in `steps`.
            ConfigError: as in `step`.
        """
        return self._entered().steps(n)

    async def run(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Return what a function returns in the thread of the flow, such as `call.result`.

        Args:
            function: Function that is called in that thread.
            arguments: Arguments of the function.

        Raises:
            Exception: what it raised.
            ConfigError: as in `step`.
        """
        return await self._entered().run(function, *arguments)

    def _entered(self) -> FlowThread:
        if self._thread is None:
            raise ConfigError("the flow is not open for asyncio; use it in an `async with` block")
        return self._thread

    # --- Requests by hand ---

    def fetch(self, n_rows: int, *, partition: str = TRAIN) -> tuple[int, ...]:
        """Take rows from the source; returns their ids, fewer at the end of the source.

        Functions take them like others when `steps` runs; before that, `post` can name them.

        Raises:
            ConfigError: it is no whole number of groups, the partition has no source, or there are no slots.
            FlowError: an element cannot be read.
        """
        return self._requests.fetch(n_rows, partition)

    def post(self, what: RoleFunction | Hook | str, ids: Iterable[int] = ()) -> PostedCall:
        """Post a blocking request: it waits until a flush names it.

        Args:
            what: a function of the flow, by role and method or by its name, or a hook.
            ids: rows of the function, whole groups that have its inputs.

        Raises:
            ConfigError: there is no such function, the rows are not ready for it, or a hook has no role.
        """
        return self._requests.post(what, ids)

    def flush(self, *calls: PostedCall) -> None:
        """Commit posted calls: they get their places in the order. Those that were flushed before keep theirs.

        Raises:
            ConfigError: one of them was cancelled, or is no call of this flow; nothing is flushed then.
        """
        self._requests.flush(*calls)

    def ask(self, what: str, *, role: Placement | None = None) -> Any:
        """Send a non-blocking request.

        Args:
            what: Name of the request: "spec" returns columns of the source, how many elements it has if it is a
                sequence, or all shards of a dataset are (None otherwise), rows per step, and the bound of the age;
                "stats" rows, bytes, steps, drops, restarts of workers, rows that were made again, rows that
                functions went without ("left_out"), and NaN and infinities as `FlowStep.not_finite` has them. The
                last three count from the moment when the flow was opened or has gone back; "inside" what each worker
                process is inside of, also while it computes; "stacks" where the Python code of each is that is
                inside of something, the innermost frame first; "model_config" what the role's `model_config`
                returns.
            role: Role of the request "model_config".

        Raises:
            ConfigError: there is no such request, or a role is missing.
        """
        return self._requests.ask(what, role)

    def values(self, ids: Iterable[int], column: str) -> list[Value]:
        """Return a column of rows.

        Raises:
            ConfigError: a row is not in the flow, or does not have the column.
        """
        return self._requests.values(ids, column)

    def clear_data_cache(self, ids: Iterable[int]) -> int:
        """Drop rows with their groups; returns how many groups. The source refills their slots.

        Raises:
            ConfigError: a training function has used them.
        """
        return self._requests.clear_data_cache(ids)

    def load(self, role: Placement, folder: str | Path) -> int:
        """Load what the hook `save` wrote last for a role; returns the number of its step.

        Raises:
            ConfigError: there is no checkpoint.
        """
        return self._requests.load(role, folder)

    def role(self, role: Placement) -> Any:
        """Return the object of a role, for evaluation and debugging.

        Raises:
            ConfigError: it is in a worker process.
        """
        return self._requests.role(role)

    def draw(self, file: str | Path | None = None) -> str:
        """Return a picture of the flow, as SVG: functions, columns between them, and where hooks bring weights (dashed).

        Args:
            file: File that gets it, too.
        """
        calls = {one.name: one for one in self.declaration.calls}
        picture = drawing([calls[one.name] for one in self.plan.functions], self.plan.source)
        if file is not None:
            Path(file).write_text(picture)
        return picture

    def explain(self) -> str:
        """Return what each function waits for, since when, and which workers are inside which tickets."""
        return self._session.explain()

    @property
    def _requests(self) -> Requests:
        return Requests(self._session)
