"""Rows of a common save: a thread writes what functions have made of them, and a flow that goes on has it again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import FlowError, PeerLost, SegmentError, WireError
from ...records import from_plain
from ..declare.calls import TRAIN
from ..declare.declaration import Declaration
from ..declare.hooks import LoadRows
from ..declare.plan import FlowPlan
from ..declare.ranks import heads_of
from ..engine.admission import Again
from ..engine.runner import Runner
from ..master.holdings import Holdings
from ..master.master import DRIVER
from ..master.order.steps import Kind, Step
from ..master.rows.made import Bound, MadeGroup, is_recent, restore_made
from ..master.rows.records import Tag, Tags
from ..master.rows.saved import NEW
from ..process.row_file import REFUSED, RowFile, RowFileWriter
from ..store import Place
from ..store.forms import forms_of
from ..store.values import n_bytes_of
from ..workers.backend import Backend, Done

__all__ = ["FILE", "KeptRows", "RowWriter"]

_log = logging.getLogger(__name__)

#: In the folder of a save.
FILE = "rows"
#: Bytes of rows that are copied at a time; a stop waits for one such piece.
_PIECE_BYTES = 8 << 20


@dataclass(frozen=True)
class _Piece:
    """Values that are copied at a time.

    Attributes:
        column: Name of the column.
        groups: Groups of the values.
        places: Places of the values.
    """

    column: str
    groups: tuple[MadeGroup, ...]
    places: list[Any]


class RowWriter:
    """Writes values of rows to a file. The rows keep their memory until they have been read.

    Only the thread of the flow calls it.

    Attributes:
        n_unread: values that could not be read, so they are left out.

    Args:
        path: Path of the file.
        groups: Groups, with the columns that are written.
        bound: Bound of the age of rows.
        held: Places of values.
        backend: Backend that has the values; any thread may read them.
    """

    def __init__(
        self, path: Path, groups: Sequence[MadeGroup], bound: Bound, held: Holdings, backend: Backend
    ) -> None:
        self.n_unread = 0
        self._bound = bound
        self._path = path
        # In one process tags may be anything.
        self._groups = groups = [one for one in groups if all(map(_are_plain, one.tags))]
        self._held = held
        self._backend = backend
        self._kept = [row_id for one in groups for row_id in one.ids]
        held.pin(self._kept)
        self._work = list(_pieces(groups, held))
        self._is_stopped = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="softs-flow-rows", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether the file is there, or could not be written."""
        return self._thread.ident is not None and not self._thread.is_alive()

    def release(self) -> None:
        """Have the rows keep their memory no more, if they have been read; idempotent."""
        if self.is_done or self._is_stopped:
            kept, self._kept = self._kept, []
            self._backend.free(self._held.unpin(kept))

    def end(self) -> None:
        """Wait until the file is there, synced.

        Raises:
            OSError: it cannot be written.
            FlowError: there are too many rows.
        """
        self._thread.join()
        self.release()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Stop soon, whether or not the file is there; idempotent."""
        self._is_stopped = True
        if self._thread.ident is not None:
            self._thread.join()
        self.release()

    # --- In the thread ---

    def _run(self) -> None:
        try:
            file = RowFileWriter(self._path)
            try:
                for piece in self._work:
                    if self._is_stopped:
                        return
                    self._copy(file, piece)
                file.end(self._groups, self._bound)
            finally:
                file.close()
        except BaseException as error:
            self._error = error

    def _copy(self, file: RowFileWriter, piece: _Piece) -> None:
        try:
            file.add(piece.column, piece.groups, self._backend.values(piece.places))
        except (FlowError, PeerLost, SegmentError):
            # The process that holds them has ended, or, in one process, they are of a type that has no bytes.
            self.n_unread += len(piece.places)


def _are_plain(tags: dict[str, Tag]) -> bool:
    """Return whether the tags of a row can be in a file."""
    try:
        from_plain(Tags, tags)
    except WireError:
        return False
    return all(type(one) is not int or -(1 << 63) <= one < 1 << 63 for one in tags.values())


def _pieces(groups: Sequence[MadeGroup], held: Holdings) -> Iterator[_Piece]:
    """Yield the columns of groups in pieces of some size: of each some groups, which are neighbours."""
    columns = dict.fromkeys(name for one in groups for name in one.columns)
    for column in columns:
        own: list[MadeGroup] = []
        n_bytes = 0
        for one in [one for one in groups if column in one.columns]:
            # That of all columns is more than that of this one.
            if own and n_bytes + one.n_bytes > _PIECE_BYTES:
                yield _piece(column, own, held)
                own, n_bytes = [], 0
            own.append(one)
            n_bytes += one.n_bytes
        yield _piece(column, own, held)


def _piece(column: str, groups: Sequence[MadeGroup], held: Holdings) -> _Piece:
    ids = [row_id for one in groups for row_id in one.ids]
    return _Piece(column, tuple(groups), held.places(ids, column))


class KeptRows:
    """What functions had made of groups of a save for which there are slots.

    A column is read by workers of this host: by heads of the role that makes it, if some are among them. If there are none
    it is read by the master. What cannot be read is made again, with a warning.

    Args:
        path: Path of the file with what was made.
        again: Groups of the save, in their order.
        plan: Plan of the flow.
        room: Groups of the training partition that may be admitted.
        n_used: Groups that were admitted before these, and not dropped.
        max_bytes: See `Flow`.
    """

    def __init__(
        self,
        path: Path,
        again: Sequence[Again],
        plan: FlowPlan,
        room: int,
        n_used: int,
        max_bytes: int | None,
    ) -> None:
        self._path = path
        self._again = again
        self._file: RowFile | None = None
        self._first: list[Again] = []
        self._wanted: list[MadeGroup] = []
        self._n_values = 0
        try:
            file = RowFile(path)
        except (WireError, OSError) as error:
            _log.warning(
                "%s: %s; the rows that had been made when the flow was saved are made again", path, error
            )
            return
        self._file = file
        self._first = _first(again, room, file, max_bytes)
        order = [group.first_id for group, _ in again if group.partition == TRAIN]
        for number, first_id in enumerate(order[: len(self._first)]):
            made = file.groups.get(first_id)
            if made is not None and is_recent(plan, file.bound, made.version, n_used + number):
                self._wanted.append(made)

    def steps(self, declaration: Declaration, beside: Iterable[int]) -> tuple[Step, ...]:
        """Return the steps in which workers read what is wanted.

        Args:
            declaration: Declaration of the flow.
            beside: Workers of this host.
        """
        pieces = self._file.pieces if self._file is not None else ()
        readers = _readers(declaration, frozenset(beside))
        n_rows = {one.first_id: one.n_rows for one in self._wanted}
        parts: dict[tuple[int, str], tuple[list[int], list[int]]] = {}
        n_pieces: dict[str, int] = {}
        for number, (column, groups) in enumerate(pieces):
            own = [one for one in groups if one in n_rows]
            workers = readers.get(column)
            if own and workers:
                turn = n_pieces[column] = n_pieces.get(column, -1) + 1
                part = parts.setdefault((workers[turn % len(workers)], column), ([], []))
                part[0].append(number)
                part[1].extend(own)
                self._n_values += sum(n_rows[one] for one in own)
        return tuple(
            Step(
                Kind.MAIN,
                frozenset({worker}),
                LoadRows((), 1, self._path, column, tuple(some), tuple(own)),
                0.1,
            )
            for (worker, column), (some, own) in parts.items()
        )

    def admit(self, loaded: Sequence[Done], runner: Runner, admit: Callable[[Again], object]) -> list[Again]:
        """Admit the groups, with what workers have read; returns the other groups of the save.

        Args:
            loaded: Results of the steps that have read values.
            runner: Runner that has restored the save, and no rows.
            admit: Function that makes the rows of a group again; called in the order of the groups.
        """
        for one in self._first:
            admit(one)
        if self._wanted:
            self._warn(loaded)
            _restore(loaded, self._wanted, runner)
        is_first = {group.first_id for group, _ in self._first}
        return [one for one in self._again if one[0].first_id == NEW or one[0].first_id not in is_first]

    def _warn(self, loaded: Sequence[Done]) -> None:
        n_refused = int(sum(done.result.numbers.get(REFUSED, 0.0) for done in loaded))
        n_damaged = self._n_values - n_refused - sum(len(done.result.ids) for done in loaded)
        if n_damaged:
            _log.warning(
                "%s: %d values were changed, or cut short, since they were saved; what is needed of them is made again",
                *(self._path, n_damaged),
            )
        if n_refused:
            _log.warning("%s: %d values have no room, and are made again", self._path, n_refused)


def _first(again: Sequence[Again], room: int, file: RowFile, max_bytes: int | None) -> list[Again]:
    """Return the groups that are admitted now: the oldest, as far as there are slots and bytes."""
    own = [one for one in again if one[0].partition == TRAIN]
    first: list[Again] = []
    n_bytes = 0
    for group, item in own[:room]:
        made = file.groups.get(group.first_id)
        n_bytes += made.n_bytes if made is not None else 0
        if group.first_id == NEW or (max_bytes is not None and n_bytes > max_bytes):
            break
        first.append((group, item))
    return first


def _readers(declaration: Declaration, beside: frozenset[int]) -> dict[str, list[int]]:
    """Return which workers read a column: heads of the role that makes it, if some are here, or else all that are here."""
    found: dict[str, list[int]] = {}
    for call in declaration.calls:
        heads = heads_of(call.model_name) if call.model_name is not None else ()
        workers = sorted(beside.intersection(heads) or beside) or [DRIVER]
        found |= dict.fromkeys(call.output_keys, workers)
    return found


def _restore(loaded: Sequence[Done], wanted: Sequence[MadeGroup], runner: Runner) -> None:
    rows, held = runner.master.rows, runner.held
    sizes: dict[int, dict[str, int]] = {one.first_id: {} for one in wanted}
    of_row = {row_id: one for one in wanted for row_id in one.ids}
    for done in loaded:
        for column, places in done.result.columns.places.items():
            # Rows that are made from now on have the form of these.
            runner.forms.check(TRAIN, column, forms_of(places), done.result.ids, "the common save")
            held.put(done.result.ids, {column: places}, done.worker)
            for row_id, place in zip(done.result.ids, places, strict=True):
                own = sizes[of_row[row_id].first_id]
                n_bytes = place.n_bytes if isinstance(place, Place) else n_bytes_of(place)
                own[column] = max(own.get(column, 0), n_bytes)
    for one in wanted:
        restore_made(rows, one, sizes[one.first_id])
    _log.info(
        "%d rows have what functions had made of them when the flow was saved",
        sum(one.n_rows for one in wanted if sizes[one.first_id]),
    )
