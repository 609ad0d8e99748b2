"""A worker's part in steps: functions on rows of shared memory, hooks, and weights that go to other workers."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Protocol

from ...errors import FlowError, PeerLost, SegmentError
from ...user_code import is_ctrl_c
from ..declare.declaration import Declaration
from ..declare.hooks import LoadRows, ParamRealloc, transfers
from ..declare.ranks import role_at
from ..declare.roles import Placement
from ..store import DataManager, Place
from ..store.ids import state_id
from ..store.values import Value, n_bytes_of
from ..store.weights.exchange import is_local, show, take
from ..store.weights.shown import Shown
from .devices import device_work
from .functions import Batch, Failure, Outcome, call_function
from .objects import Objects
from .saved_rows import load_rows
from .work import HookWork, MainWork, MoveWork, Work

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
        store: Store of this process.
        arrived: Function that takes places of values that this worker has got from another node, and keeps.
    """

    def __init__(
        self,
        declaration: Declaration,
        objects: Objects,
        store: DataManager,
        arrived: Arrived = lambda ticket, column, ids, places: None,
    ) -> None:
        self._arrived = arrived
        #: Of weights that a worker shows: where they are nearer, by where they are.
        self.near: dict[Place, Place] = {}
        self._declaration = declaration
        self._functions = {one.name: one for one in declaration.calls}
        self._objects = objects
        self._store = store

    def run(
        self, work: Work, ticket: int, await_state: AwaitState, show_to: Callable[[Shown], None]
    ) -> tuple[Outcome, int]:
        """Run this worker's part of a step; returns what it did, with places, and how many bytes of rows it made.

        Args:
            work: Work of the step: a function with rows, a hook, or a move of rows.
            ticket: Ticket of the step.
            await_state: Function that returns weights of a source that is elsewhere.
            show_to: Function that takes, at once, what is shown of a source here for targets that are elsewhere.
        """
        outcome, n_bytes, began, read_s = Outcome(), 0, time.monotonic(), 0.0
        try:
            if isinstance(work, MainWork):
                inputs, read_s, failure = self._read_all(work, ticket)
                if failure is not None:
                    return Outcome(failure=failure, unread=True), 0
                outcome = self._main(work, inputs)
                n_bytes = sum(n_bytes_of(value) for values in outcome.columns.values() for value in values)
                outcome.columns = self._put(outcome)
            elif isinstance(work, MoveWork):
                self._move(work, ticket)
            elif isinstance(work.hook, LoadRows):
                outcome = load_rows(work.hook, self._store.put)
                n_bytes = sum(place.n_bytes for place in outcome.columns[work.hook.column])
            else:
                with device_work():
                    outcome.numbers = self._hook(work, ticket, await_state, show_to)
        except BaseException as error:
            if is_ctrl_c(error):
                raise
            outcome, n_bytes = Outcome(failure=Failure.of(error)), 0
        outcome.began_s, outcome.read_s = began, read_s
        outcome.seconds = time.monotonic() - began - read_s
        return outcome, n_bytes

    def drop(self, ids: Sequence[int], columns: Iterable[str]) -> None:
        """Drop what a call has put, and nothing else of its rows."""
        for column in columns:
            self._store.drop(column, ids)

    def _read_all(self, work: MainWork, ticket: int) -> tuple[dict[str, list[Value]], float, Failure | None]:
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
        read_s = time.monotonic() - began
        role = self._functions[work.function].model_name
        if role is not None:
            role = role_at(role, self._store.worker)
        is_well = self._objects.agree(role, error is None)
        if isinstance(error, Unreadable):
            return {}, read_s, Failure.of(error)
        if error is not None:
            raise error
        if not is_well:
            text = "another worker of the role could not read its rows"
            return {}, read_s, Failure(text, f"{Unreadable.__name__}: {text}")
        return inputs, read_s, None

    def _inputs(self, work: MainWork, ticket: int) -> dict[str, list[Value]]:
        here = {
            column: self._brought(ticket, column, work.ids, places) for column, places in work.columns.items()
        }
        try:
            # One call for all columns: values of one holder are copied together.
            values = list(self._store.get([place for places in here.values() for place in places]))
        except (FlowError, PeerLost, SegmentError) as error:
            raise Unreadable(str(error)) from error
        columns: dict[str, list[Value]] = {}
        for number, key in enumerate(work.columns):
            columns[key] = values[number * len(work.ids) : (number + 1) * len(work.ids)]
        return columns

    def _main(self, work: MainWork, columns: dict[str, list[Value]]) -> Outcome:
        batch = Batch(work.ids, columns, work.tags, work.step, work.use, work.ends_step, work.age, work.part)
        declared = self._declaration
        call = self._functions[work.function]
        return call_function(
            call,
            self._objects,
            batch,
            worker=self._store.worker,
            group=declared.group,
            digests=declared.digests,
        )

    def _put(self, outcome: Outcome) -> dict[str, list[Place]]:
        """Keep the columns that a function has made, all of them or none; returns their places."""
        places: dict[str, list[Place]] = {}
        try:
            for column, values in outcome.columns.items():
                places[column] = list(self._store.put(column, outcome.ids, values))
        except BaseException:
            self.drop(outcome.ids, places)
            raise
        return places

    def _hook(
        self, work: HookWork, ticket: int, await_state: AwaitState, show_to: Callable[[Shown], None]
    ) -> dict[str, float]:
        objects, pairs = self._objects, transfers(work.hook, work.owner)
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
                show_to(show(self._store, state_id(ticket), self._number(source), shown))
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
            with self._store.mapped(here) as address:
                yield address
        except (FlowError, PeerLost, SegmentError) as error:
            raise Unreadable(str(error)) from error

    def _number(self, role: Placement) -> int:
        return self._declaration.roles.index(role)

    def _move(self, work: MoveWork, ticket: int) -> None:
        """Bring rows to this node. What cannot be read is an error of the step that needs it."""
        try:
            for column, places in work.columns.items():
                self._brought(ticket, column, work.ids, places)
        except Unreadable as error:
            logger.info("%d rows were not brought: %s", len(work.ids), error)

    def _brought(self, ticket: int, column: str, ids: Sequence[int], places: Sequence[Place]) -> list[Place]:
        """Get values of other nodes into the store of this process; returns where all values are on this node."""
        found = list(places)
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
