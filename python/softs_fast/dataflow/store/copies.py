"""Which worker of a node gets a value from another node, so that each node gets it once. Pure: no clock, socket, torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .places import Place
from .senders import senders_of

__all__ = ["Copies"]


@dataclass(slots=True)
class _Copy:
    """A value that a node has, or will have, from another one.

    Attributes:
        source: Place where the value was made; a value that is made again has another one.
        worker: Worker of the node that has the value or gets it.
        ticket: Ticket of the step in which the worker gets it.
        place: Place of the copy at that worker; None while it is on its way.
        asked: Place from which the worker is to read it; None until that was chosen.
    """

    source: Place
    worker: int
    ticket: int
    place: Place | None = None
    asked: Place | None = None


class Copies:
    """Copies of values on other nodes than those that have made them.

    A worker that gets a place of another node reads the value from there, keeps it, and reports its place. Other workers
    of its node get that place; one that needs it earlier waits. This cannot hang if steps claim what their nodes lack in
    the order of their tickets: then a step waits only for values that it, or a step before it in the order, gets.

    Args:
        nodes: the node of each worker.
    """

    def __init__(self, nodes: Mapping[int, str]) -> None:
        self._numbers = {node: i for i, node in enumerate(sorted(set(nodes.values())))}
        self._nodes = {worker: self._numbers[node] for worker, node in nodes.items()}
        #: By row, then by node and column.
        self._rows: dict[int, dict[tuple[int, str], _Copy]] = {}
        #: By row the workers that keep copies of its values, also of those that were made again since then.
        self._keeping: dict[int, set[int]] = {}
        #: What is on its way, by the worker and the ticket of its step.
        self._coming: dict[tuple[int, int], set[tuple[int, int, str]]] = {}
        #: Bytes that workers were told to read from other nodes, in all.
        self.n_bytes = 0

    def claim(
        self, worker: int, ticket: int, ids: Sequence[int], columns: Mapping[str, Sequence[Place]]
    ) -> None:
        """Have a worker get, in a step, what its node lacks and nothing else gets.

        Args:
            worker: Worker that runs the step.
            ticket: Ticket of the step.
            ids: Ids of the rows.
            columns: Places where the values were made, by column; as many as ids.
        """
        node = self._nodes[worker]
        for column, places in columns.items():
            for row_id, made in zip(ids, places, strict=True):
                if self._nodes[made.worker] != node and self._copy(row_id, node, column, made) is None:
                    self._rows.setdefault(row_id, {})[node, column] = _Copy(made, worker, ticket)
                    self._coming.setdefault((worker, ticket), set()).add((row_id, node, column))

    def choose(
        self, worker: int, ticket: int, ids: Sequence[int], columns: Mapping[str, Sequence[Place]]
    ) -> dict[str, list[Place]] | None:
        """Claim, and return the places that a worker reads in a step; those of other nodes are its to keep and to report.

        Each value is read from the holder from which the fewest bytes are being read.

        Args:
            worker: Worker that runs the step; all arguments are those of `claim`.

        Returns:
            None: some of the values are on their way to another worker of the node; ask again later.
        """
        self.claim(worker, ticket, ids, columns)
        node = self._nodes[worker]
        chosen = {column: list(places) for column, places in columns.items()}
        found: list[tuple[list[Place], int, _Copy]] = []
        unasked: list[tuple[_Copy, dict[int, Place]]] = []
        for column, places in chosen.items():
            for i, (row_id, made) in enumerate(zip(ids, places, strict=True)):
                copy = self._copy(row_id, node, column, made)
                if copy is None:
                    continue  # its own node has made it
                if copy.place is None and (copy.worker, copy.ticket) != (worker, ticket):
                    return None
                if copy.place is None and copy.asked is None:
                    unasked.append((copy, self._holders(row_id, column, made)))
                found.append((places, i, copy))
        self._ask(unasked)
        for places, i, copy in found:
            places[i] = copy.place or copy.asked or places[i]
        return chosen

    def arrived(
        self, worker: int, ticket: int, column: str, ids: Sequence[int], places: Sequence[Place]
    ) -> None:
        """A worker has got values of a column, and keeps them."""
        node, coming = self._nodes[worker], self._coming.get((worker, ticket), set())
        for row_id, place in zip(ids, places, strict=True):
            self._keeping.setdefault(row_id, set()).add(worker)
            copy = self._claimed(worker, ticket, row_id, node, column)
            if copy is not None:
                copy.place = place
                coming.discard((row_id, node, column))

    def ended(self, worker: int, ticket: int) -> bool:
        """A worker's part in a step has ended; returns whether something has not arrived, and so does not come."""
        lacking = self._coming.pop((worker, ticket), set())
        for row_id, node, column in lacking:
            if self._claimed(worker, ticket, row_id, node, column) is not None:
                del self._rows[row_id][node, column]
        return bool(lacking)

    def lose(self, worker: int) -> None:
        """A worker has ended, and with it what it kept."""
        for step in [step for step in self._coming if step[0] == worker]:
            del self._coming[step]
        for row_id, copies in list(self._rows.items()):
            for key in [key for key, copy in copies.items() if copy.worker == worker]:
                del copies[key]
            for copy in copies.values():
                if copy.asked is not None and copy.asked.worker == worker:
                    copy.asked = None
            if not copies:
                del self._rows[row_id]
        for row_id in [row_id for row_id, workers in self._keeping.items() if worker in workers]:
            self._keeping[row_id].discard(worker)

    def join(self, worker: int, node: str) -> None:
        """A worker that had ended is there again, on any node, and keeps nothing."""
        self._nodes[worker] = self._numbers.setdefault(node, len(self._numbers))

    def free(self, ids: Iterable[int]) -> dict[int, list[int]]:
        """Rows have gone; returns which workers have copies of which of them."""
        by_worker: dict[int, list[int]] = {}
        for row_id in ids:
            self._rows.pop(row_id, None)
            for worker in self._keeping.pop(row_id, ()):
                by_worker.setdefault(worker, []).append(row_id)
        return by_worker

    @property
    def nodes(self) -> dict[int, int]:
        """The number of the node of each worker."""
        return dict(self._nodes)

    def _copy(self, row_id: int, node: int, column: str, made: Place) -> _Copy | None:
        copy = self._rows.get(row_id, {}).get((node, column))
        if copy is None or (copy.source.segment, copy.source.serial) != (made.segment, made.serial):
            return None
        return copy

    def _claimed(self, worker: int, ticket: int, row_id: int, node: int, column: str) -> _Copy | None:
        """Return what a worker gets, or has got, in a step; None: the row has gone, or the value was made again."""
        copy = self._rows.get(row_id, {}).get((node, column))
        return copy if copy is not None and (copy.worker, copy.ticket) == (worker, ticket) else None

    def _ask(self, copies: list[tuple[_Copy, dict[int, Place]]]) -> None:
        """Choose from which of its holders each of some copies is read."""
        sizes = [copy.source.n_bytes for copy, _ in copies]
        loads = self._loads() if any(len(held) > 1 for _, held in copies) else None
        senders = senders_of([sorted(held) for _, held in copies], sizes, loads)
        for (copy, held), sender in zip(copies, senders, strict=True):
            copy.asked = held[sender]
        self.n_bytes += sum(sizes)

    def _loads(self) -> Counter[int]:
        """Return how many bytes are being read from each worker."""
        loads: Counter[int] = Counter()
        for (worker, ticket), keys in self._coming.items():
            for row_id, node, column in keys:
                copy = self._claimed(worker, ticket, row_id, node, column)
                if copy is not None and copy.asked is not None:
                    loads[copy.asked.worker] += copy.asked.n_bytes
        return loads

    def _holders(self, row_id: int, column: str, made: Place) -> dict[int, Place]:
        """Return the workers that have a value, with its places."""
        found = {made.worker: made}
        for (node, name), copy in self._rows.get(row_id, {}).items():
            if name == column and copy.place is not None and self._copy(row_id, node, column, made):
                found[copy.worker] = copy.place
        return found
