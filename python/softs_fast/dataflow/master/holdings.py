"""Which workers hold the values of rows, when their memory may go, and which of them are on their way to another node.

Pure: no clock, socket or tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Frees", "Holdings"]

#: Ids of rows, or of other values, that workers may drop, by worker.
Frees = dict[int, list[int]]


@dataclass(slots=True)
class _Copy:
    """Values that a node has, or will have, from another one.

    Attributes:
        worker: Worker of the node that has the values or gets them.
        ticket: Ticket of the step in which the worker gets them.
        sender: Worker from which they are read; None until that was chosen.
        places: Their places at the worker of the node; None while they are on their way.
    """

    worker: int
    ticket: int
    sender: int | None = None
    places: Sequence[Any] | None = None


@dataclass(slots=True)
class _Column:
    """The values of a group in a column.

    Attributes:
        worker: Worker that has made them; None if it has ended since then.
        places: Where they are at that worker, one place for each row.
        copies: Copies at other nodes, by node.
    """

    worker: int | None
    places: Sequence[Any]
    copies: dict[str, _Copy] = field(default_factory=dict)

    def holders(self) -> dict[int, Sequence[Any]]:
        """Return the workers that have the values, with the places there."""
        found = {} if self.worker is None else {self.worker: self.places}
        found |= {one.worker: one.places for one in self.copies.values() if one.places is not None}
        return found


@dataclass(slots=True)
class _Group:
    """Rows that stay together.

    Attributes:
        ids: Ids of the rows.
        columns: Columns that workers have made, the last that has made one.
        workers: Workers with memory of the rows, also with values that count no more.
        n_uses: Number of steps, and of other readers, that read the rows.
        is_gone: Whether the rows have gone, and only those that read them are left.
        element: Worker that keeps their values of the source once for all of them, and the id there; None: none does.
    """

    ids: range
    columns: dict[str, _Column] = field(default_factory=dict)
    workers: set[int] = field(default_factory=set)
    n_uses: int = 0
    is_gone: bool = False
    element: tuple[int, int] | None = None


class Holdings:
    """Places of values, by group of rows and column.

    A group is never split: one worker makes a column of all its rows. Places are opaque, but those that are copied have
    `n_bytes`.

    A worker that gets places of another node reads the values from there, keeps them, and reports where. Other workers of
    its node get that; one that needs it earlier waits. This cannot hang if steps claim what their nodes lack in the order
    of their tickets: then a step waits only for values that it, or a step before it in the order, gets.
    """

    def __init__(self) -> None:
        #: By the id of each row.
        self._groups: dict[int, _Group] = {}
        self._elements: dict[tuple[int, int], _Group] = {}
        self._nodes: dict[int, str] = {}
        #: What is on its way, by the worker and the ticket of its step, and then by the first row and the column.
        self._coming: dict[tuple[int, int], dict[tuple[int, str], tuple[_Column, _Copy]]] = {}
        #: Bytes that workers were told to read from other nodes, in all.
        self.n_bytes = 0

    # --- Rows and their values ---

    def __contains__(self, row_id: int) -> bool:
        return row_id in self._groups

    def admit(self, ids: Sequence[int]) -> None:
        """A group of rows is new.

        Args:
            ids: Ids of all its rows; each is larger by one than the one before.
        """
        group = _Group(range(ids[0], ids[-1] + 1))
        self._groups.update(dict.fromkeys(ids, group))

    def put(self, ids: Sequence[int], columns: Mapping[str, Sequence[Any]], worker: int) -> None:
        """A worker has made columns.

        Args:
            ids: Ids of the rows, of groups that are there.
            columns: Places of the values by the name of the column, as many as ids.
            worker: Number of the worker.

        Raises:
            ValueError: a group is split.
        """
        listed = {name: list(places) for name, places in columns.items()}
        for at, group in self._whole(ids) if columns else ():
            for column, places in listed.items():
                group.columns[column] = _Column(worker, places[at : at + len(group.ids)])
            group.workers.add(worker)

    def note(self, worker: int, ids: Iterable[int]) -> Frees:
        """A worker has values of rows that are of no use: they go with the rows; returns those that have gone already."""
        gone = []
        for row_id in ids:
            if row_id in self._groups:
                self._groups[row_id].workers.add(worker)
            else:
                gone.append(row_id)
        return {worker: gone} if gone else {}

    def columns(self, row_id: int) -> list[str]:
        """Return the columns of a row that a worker has made and holds; none if the row has gone."""
        group = self._groups.get(row_id)
        return [name for name, one in group.columns.items() if one.worker is not None] if group else []

    def places(self, ids: Iterable[int], column: str) -> list[Any]:
        """Return where a column of rows was made, in any order of the rows; of a worker that has ended, where it was."""
        groups = ((row_id, self._groups[row_id]) for row_id in ids)
        return [one.columns[column].places[row_id - one.ids.start] for row_id, one in groups]

    # --- Elements of datasets ---

    def bind(self, ids: Sequence[int], worker: int, element: int) -> None:
        """A worker keeps the values of an element of a dataset for the rows of a group, until these have gone."""
        group = self._groups[ids[0]]
        group.element = worker, element
        self._elements[worker, element] = group

    def element(self, row_id: int) -> tuple[int, int] | None:
        """Return the worker and the id of the element that a row was made of; None: it is of another source."""
        group = self._groups.get(row_id)
        return group.element if group is not None else None

    def elements_of(self, worker: int) -> list[int]:
        """Return the elements that a worker keeps, or has kept, for rows."""
        return [element for head, element in self._elements if head == worker]

    def rows_of(self, worker: int, element: int) -> Sequence[int]:
        """Return the rows of an element that are there; none if they have gone."""
        group = self._elements.get((worker, element))
        return group.ids if group is not None else ()

    # --- Memory ---

    def pin(self, ids: Sequence[int]) -> None:
        """A step will read rows: they keep their memory."""
        for _, group in self._whole(ids):
            group.n_uses += 1

    def unpin(self, ids: Sequence[int]) -> Frees:
        """A step reads rows no more; returns what goes with it."""
        frees: Frees = {}
        for _, group in self._whole(ids):
            group.n_uses -= 1
            if group.is_gone and not group.n_uses:
                self._remove(group, frees)
        return frees

    def drop(self, ids: Sequence[int]) -> Frees:
        """Rows have gone; returns what goes at once. What is read goes when that has ended."""
        frees: Frees = {}
        for _, group in self._whole(ids):
            group.is_gone = True
            if not group.n_uses:
                self._remove(group, frees)
        return frees

    def clear(self) -> None:
        """All rows have gone with the flow."""
        for one in (self._groups, self._elements, self._coming):
            one.clear()

    # --- Workers come and go ---

    @property
    def has_nodes(self) -> bool:
        """Whether there are several nodes; on one all values are there."""
        return len(set(self._nodes.values())) > 1

    def begin(self, nodes: Mapping[int, str]) -> None:
        """Workers are on these nodes; without a call all are on one."""
        self._nodes = dict(nodes)

    def join(self, worker: int, node: str) -> None:
        """A worker that had ended is there again, on any node, and holds nothing."""
        if self._nodes:
            self._nodes[worker] = node

    def lose(self, worker: int) -> dict[int, list[str]]:
        """A worker has ended with all that it had, also what others may have mapped; idempotent.

        Returns:
            All columns without a worker that has made them, by the first row of the group.
        """
        for step in [step for step in self._coming if step[0] == worker]:
            del self._coming[step]
        lost: dict[int, list[str]] = {}
        for first, group in self._groups.items():
            if first != group.ids.start:
                continue
            group.workers.discard(worker)
            for name, column in group.columns.items():
                if column.worker == worker:
                    column.worker = None
                if column.worker is None:
                    lost.setdefault(first, []).append(name)
                column.copies = {node: one for node, one in column.copies.items() if one.worker != worker}
                for copy in column.copies.values():
                    if copy.sender == worker:
                        copy.sender = None
        return lost

    # --- Values of other nodes ---

    def claim(
        self, worker: int, ticket: int, ids: Sequence[int], columns: Mapping[str, Sequence[Any]]
    ) -> None:
        """Have a worker get, in a step, what its node lacks and nothing else gets.

        Args:
            worker: Worker that runs the step.
            ticket: Ticket of the step.
            ids: Ids of the rows.
            columns: Places where the values were made, by column; as many as ids. Of what was made again since then
                nothing is claimed.
        """
        node = self._nodes.get(worker)
        if node is None:
            return
        for _, group, name, column in self._made(ids, columns):
            is_here = column.worker is not None and self._nodes[column.worker] == node
            if not is_here and node not in column.copies:
                column.copies[node] = copy = _Copy(worker, ticket)
                self._coming.setdefault((worker, ticket), {})[group.ids.start, name] = column, copy

    def choose(
        self, worker: int, ticket: int, ids: Sequence[int], columns: Mapping[str, Sequence[Any]]
    ) -> dict[str, list[Any]] | None:
        """Claim, and return the places that a worker reads in a step; those of other nodes are its to keep and to report.

        Each column of a group is read from the holder from which the fewest bytes are being read.

        Args:
            worker: Worker that runs the step; all arguments are those of `claim`.

        Returns:
            None: some of the values are on their way to another worker of the node; ask again later.
        """
        self.claim(worker, ticket, ids, columns)
        chosen = {name: list(places) for name, places in columns.items()}
        node = self._nodes.get(worker)
        if node is None:
            return chosen
        found: list[tuple[list[Any], int, _Column, _Copy]] = []
        for at, _, name, column in self._made(ids, columns):
            copy = column.copies.get(node)
            if copy is None:
                continue  # its own node has made it
            if copy.places is None and (copy.worker, copy.ticket) != (worker, ticket):
                return None
            found.append((chosen[name], at, column, copy))
        self._ask([(column, copy) for _, _, column, copy in found if copy.places is None])
        for places, at, column, copy in found:
            near = copy.places
            if near is None and copy.sender is not None:
                near = column.holders()[copy.sender]
            if near is not None:
                places[at : at + len(near)] = near
        return chosen

    def arrived(
        self, worker: int, ticket: int, column: str, ids: Sequence[int], places: Sequence[Any]
    ) -> None:
        """A worker has got values of a column, and keeps them."""
        coming, listed = self._coming.get((worker, ticket), {}), list(places)
        for at, group in self._whole(ids):
            group.workers.add(worker)
            claimed = coming.pop((group.ids.start, column), None)
            if claimed is not None:
                claimed[1].places = listed[at : at + len(group.ids)]

    def ended(self, worker: int, ticket: int) -> bool:
        """A worker's part in a step has ended; returns whether something has not arrived, and so does not come."""
        lacking = self._coming.pop((worker, ticket), {})
        for column, copy in lacking.values():
            column.copies = {node: one for node, one in column.copies.items() if one is not copy}
        return bool(lacking)

    # --- Inside ---

    def _whole(self, ids: Sequence[int]) -> Iterator[tuple[int, _Group]]:
        """Yield the groups of rows that are there, and where in the ids each begins.

        Raises:
            ValueError: a group is split.
        """
        at = 0
        while at < len(ids):
            group = self._groups.get(ids[at])
            end = at + (1 if group is None else len(group.ids))
            if group is not None:
                if end > len(ids) or (ids[at], ids[end - 1]) != (group.ids[0], group.ids[-1]):
                    raise ValueError(f"rows {list(ids[at:end])} are not the group {list(group.ids)}")
                yield at, group
            at = end

    def _made(
        self, ids: Sequence[int], columns: Mapping[str, Sequence[Any]]
    ) -> Iterator[tuple[int, _Group, str, _Column]]:
        """Yield the columns of groups that are still where they were made, and where in the ids each group begins."""
        for at, group in self._whole(ids):
            for name, places in columns.items():
                column = group.columns.get(name)
                if column is not None and column.places[0] == places[at]:
                    yield at, group, name, column

    def _remove(self, group: _Group, frees: Frees) -> None:
        for row_id in group.ids:
            del self._groups[row_id]
        for worker in group.workers:
            frees.setdefault(worker, []).extend(group.ids)
        if group.element is not None:
            del self._elements[group.element]
            worker, element = group.element
            frees.setdefault(worker, []).append(element)

    def _ask(self, claims: Iterable[tuple[_Column, _Copy]]) -> None:
        """Choose from which of its holders each copy is read: the one from which the fewest bytes are."""
        asked = [(column, copy, column.holders()) for column, copy in claims if copy.sender is None]
        has_choice = any(len(holders) > 1 for _, _, holders in asked)
        loads: Counter[int] = Counter()
        for column, copy in (one for some in self._coming.values() for one in some.values() if has_choice):
            if copy.sender is not None:
                loads[copy.sender] += _n_bytes(column)
        # Those without a choice come first, because others can go elsewhere.
        for column, copy, holders in sorted(asked, key=lambda one: len(one[2])):
            if holders:  # otherwise all have ended, and the step will not be able to read them
                copy.sender = min(sorted(holders), key=loads.__getitem__)
                loads[copy.sender] += _n_bytes(column)
                self.n_bytes += _n_bytes(column)


def _n_bytes(column: _Column) -> int:
    n: int = sum(place.n_bytes for place in column.places)
    return n
