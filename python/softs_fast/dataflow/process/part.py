"""A worker's part in steps: functions on rows of shared memory, hooks, and weights that go to other workers."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from ...errors import FlowError, PeerLost, SegmentError
from ...records import replace
from ...user_code import is_ctrl_c
from ..declare.declaration import Declaration
from ..declare.hooks import LoadRows, ParamRealloc, transfers
from ..declare.ranks import role_at
from ..declare.roles import Placement
from ..link.columns import Columns
from ..link.results import Failure, Result
from ..link.tasks import MainTask, MoveTask
from ..store import DataManager, Place
from ..store.ids import state_id
from ..store.own import OwnValues
from ..store.values import Value
from ..store.weights.exchange import is_local, show, take
from ..store.weights.shown import Shown
from .devices import device_work
from .functions import call_function
from .objects import Objects
from .row_file import load_rows
from .work import HookWork, Work

__all__ = ["Arrived", "AwaitState", "Part", "Unreadable", "weights_column"]

logger = logging.getLogger(__name__)


class Unreadable(FlowError):
    """Values cannot be read where they are: the process that holds them may have ended."""


class AwaitState(Protocol):
    """Returns what workers show of a role of this number, when more is there than is known."""

    def __call__(self, role: int, known: int) -> Sequence[Shown]: ...


class Arrived(Protocol):
    """Takes the ticket, a column, ids of rows, and places of their values in the store of this process."""

    def __call__(self, ticket: int, column: str, ids: Sequence[int], places: Sequence[Place], /) -> None: ...


def weights_column(place: Place) -> str:
    """Return the column by which copies of weights on other nodes are known; the place is that of the source."""
    return f"weights {place.worker} {place.offset}"


class Part:
    """Runs what one worker is told to.

    Args:
        declaration: Declaration of the flow.
        objects: Objects of the roles that are in this process.
        store: Store of this process, or its values themselves.
        arrived: Function that takes places of values that this worker has got from another node, and keeps.
        raised: Function that takes the exception of a step that fails.
    """

    def __init__(
        self,
        declaration: Declaration,
        objects: Objects,
        store: DataManager | OwnValues,
        arrived: Arrived = lambda ticket, column, ids, places: None,
        raised: Callable[[BaseException], object] = lambda error: None,
    ) -> None:
        self._raised = raised
        self._arrived = arrived
        #: Of weights that a worker shows: where they are nearer, by where they are.
        self.near: dict[Place, Place] = {}
        self._declaration = declaration
        self._functions = {one.name: one for one in declaration.calls}
        self._objects = objects
        self._store = store

    def run(
        self,
        work: Work,
        ticket: int,
        await_state: AwaitState,
        show_to: Callable[[Shown], None],
    ) -> Result:
        """Run this worker's part of a step; returns what it did, with the places of rows that it made.

        Args:
            work: Work of the step: a function with rows, a hook, or a move of rows.
            ticket: Ticket of the step.
            await_state: Function that returns weights of a source that is elsewhere.
            show_to: Function that takes, at once, what is shown of a source here for targets that are elsewhere.
        """
        result, began, read_s = Result(ticket), time.monotonic(), 0.0
        try:
            if isinstance(work, MainTask):
                inputs, read_s, failure = self._read_all(work, ticket)
                if failure is not None:
                    return Result(ticket, failure=failure, unread=True)
                result = self._main(work, inputs)
            elif isinstance(work, MoveTask):
                self._move(work, ticket)
            elif isinstance(work.hook, LoadRows):
                result = load_rows(work.hook, self._store.put)
            else:
                with device_work():
                    numbers = self._hook(work, ticket, await_state, show_to)
                result = Result(ticket, numbers=numbers)
        except BaseException as error:
            if is_ctrl_c(error):
                raise
            self._raised(error)
            result = Result(ticket, failure=Failure.of(error))
        seconds = time.monotonic() - began - read_s
        return replace(result, ticket=ticket, began_s=began, read_s=read_s, seconds=seconds)

    def drop(self, result: Result) -> None:
        """Drop what a step has put, and nothing else of its rows."""
        self._drop(result.ids, result.columns.places)

    def _drop(self, ids: Sequence[int], columns: Iterable[str]) -> None:
        for column in columns:
            self._store.drop(column, ids)

    def _read_all(self, work: MainTask, ticket: int) -> tuple[dict[str, list[Value]], float, Failure | None]:
        """Return the inputs of a function and how long they took, or why they cannot be read.

        Then no worker of its role enters it. The time is that of the reading alone, not that of waiting for the others.

        Raises:
            Exception: what the reading has raised beside `Unreadable`, such as that memory is short.
        """
        inputs: dict[str, list[Value]] = {}
        error: Exception | None = None
        began = time.monotonic()
        try:
            inputs = self._inputs(work, ticket)
        except Exception as caught:
            error = caught  # the others wait for what this worker says, whatever it is
        # Values of this process are copied as a part of the call.
        read_s = 0.0 if isinstance(self._store, OwnValues) else time.monotonic() - began
        role = self._functions[work.function].model_name
        if role is not None:
            role = role_at(role, self._store.worker)
        is_well = self._objects.agree(role, error is None)
        if isinstance(error, Unreadable):
            self._raised(error)
            return {}, read_s, Failure.of(error)
        if error is not None:
            raise error
        if not is_well:
            text = "another worker of the role could not read its rows"
            return {}, read_s, Failure(text, f"{Unreadable.__name__}: {text}")
        return inputs, read_s, None

    def _inputs(self, work: MainTask, ticket: int) -> dict[str, list[Value]]:
        here = {
            column: self._brought(ticket, column, work.ids, places)
            for column, places in work.columns.places.items()
        }
        try:
            # One call for all columns: values of one holder are copied together.
            values = list(self._store.get([place for places in here.values() for place in places]))
        except (FlowError, PeerLost, SegmentError) as error:
            raise Unreadable(str(error)) from error
        n = len(work.ids)
        return {key: values[number * n : (number + 1) * n] for number, key in enumerate(here)}

    def _main(self, work: MainTask, values: dict[str, list[Value]]) -> Result:
        declared = self._declaration
        return call_function(
            self._functions[work.function],
            self._objects,
            work,
            values,
            self._put,
            worker=self._store.worker,
            group=declared.group,
            digests=declared.digests,
        )

    def _put(self, ids: Sequence[int], columns: Mapping[str, Sequence[Value]]) -> Columns:
        """Keep the columns that a function has made, all of them or none; returns their places."""
        places: dict[str, Sequence[Any]] = {}
        try:
            for column, values in columns.items():
                places[column] = self._store.put(column, ids, values)
        except BaseException:
            self._drop(ids, places)
            raise
        return Columns.of(places)

    def _hook(
        self, work: HookWork, ticket: int, await_state: AwaitState, show_to: Callable[[Shown], None]
    ) -> dict[str, float]:
        objects, pairs = self._objects, transfers(work.hook, work.owner)
        if objects.has_all:  # rows and weights need not be moved
            return objects.run(work.hook, work.owner, work.step)
        if not pairs:
            roles = work.hook.roles or ((work.owner,) if work.owner is not None else ())
            # Others take part only in that they wait.
            numbers = objects.run(work.hook, work.owner, work.step) if roles[0] in objects else {}
            return numbers if objects.is_head(roles[0]) else {}
        held = {source: objects.held(source) for source, _ in pairs if source in objects}
        # Buffers are copied, and not mixed.
        eta = work.hook.eta if isinstance(work.hook, ParamRealloc) else None
        mine = {target: objects.held(target, buffers=eta is None) for _, target in pairs if target in objects}
        for source, theirs in held.items():
            targets = [target for one, target in pairs if one is source]
            # All that is shown is shown before this worker waits. If others need nothing, they are told so: should one
            # have other tensors, it does not wait in vain.
            forms = {one: mine[one].forms if one in mine else None for one in targets}
            is_needed = not all(is_local(source, one, theirs.forms, forms[one]) for one in targets)
            if is_needed or len(source.on) > 1:
                shown = theirs if is_needed else None
                show_to(show(self._shared, state_id(ticket), self._number(source), shown))
        for source, target in pairs:
            if target in mine:
                take(
                    functools.partial(self._mapped, ticket),
                    source,
                    target,
                    worker=self._store.worker,
                    theirs=held.get(source),
                    mine=mine[target],
                    eta=eta,
                    await_shown=functools.partial(await_state, self._number(source)),
                )
        return {}

    @contextmanager
    def _mapped(self, ticket: int, place: Place) -> Iterator[int]:
        near = self.near.get(place, place)
        with ExitStack() as stack:
            try:
                address = stack.enter_context(self._mapped_at(ticket, weights_column(place), near))
            except Unreadable:
                if near == place:
                    raise
                # The worker that has a copy may have ended since this one was told; the source shows them until the end.
                address = stack.enter_context(self._mapped_at(ticket, weights_column(place), place))
            yield address

    @contextmanager
    def _mapped_at(self, ticket: int, column: str, place: Place) -> Iterator[int]:
        (here,) = self._brought(ticket, column, [state_id(ticket)], [place])
        try:
            with self._shared.mapped(here) as address:
                yield address
        except (FlowError, PeerLost, SegmentError) as error:
            raise Unreadable(str(error)) from error

    @property
    def _shared(self) -> DataManager:
        assert isinstance(self._store, DataManager)
        return self._store

    def _number(self, role: Placement) -> int:
        return self._declaration.roles.index(role)

    def _move(self, work: MoveTask, ticket: int) -> None:
        """Bring rows to this node. What cannot be read is an error of the step that needs it."""
        try:
            for column, places in work.columns.places.items():
                self._brought(ticket, column, work.ids, places)
        except Unreadable as error:
            logger.info("%d rows were not brought: %s", len(work.ids), error)

    def _brought(self, ticket: int, column: str, ids: Sequence[int], places: Sequence[Place]) -> list[Place]:
        """Get values of other nodes into the store of this process; returns where all values are on this node."""
        found = list(places)
        if isinstance(self._store, OwnValues):
            return found
        far = [i for i, place in enumerate(found) if self._store.is_elsewhere(place)]
        if far:
            some = [ids[i] for i in far]
            try:
                here = self._store.fetch(column, some, [found[i] for i in far])
            except (FlowError, PeerLost, SegmentError) as error:
                raise Unreadable(str(error)) from error
            for i, place in zip(far, here, strict=True):
                found[i] = place
            self._arrived(ticket, column, some, here)
        return found
