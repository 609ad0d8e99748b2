"""Writes rows for a common save while the flow goes on: a thread reads them where they are."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import FlowError, PeerLost, SegmentError, WireError
from ...records import from_plain
from ..master.holdings import Holdings
from ..master.rows.made import Bound, MadeGroup
from ..master.rows.records import Tag, Tags
from ..process.row_files.writer import RowFileWriter
from ..workers.backend import Backend

__all__ = ["RowWriter"]

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
