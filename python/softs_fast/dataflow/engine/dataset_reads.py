"""What the master asks of the heads of datasets, and what becomes of it: rows, or values of rows that were lost."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from ...errors import FlowError
from ..declare.datasets import Dataset
from ..declare.declaration import Declaration
from ..master.master import Master
from ..master.rows.saved import NEW, SavedGroup
from ..master.shards import Arrived, Planned, ShardOrder
from ..store.forms import ColumnForms, forms_of
from ..store.ids import element_id, number_of, source_of
from ..store.values import Value
from ..workers.backend import Backend, Loaded

__all__ = ["DatasetReads"]

#: Elements of one request: what arrives is used when all of it was read.
_REQUEST = 64


@dataclass(frozen=True)
class _Request:
    """Elements that a head was told to read.

    Attributes:
        partition: Partition of the dataset.
        worker: Number of the worker that is the head.
        numbers: Numbers of the elements.
        is_lost: Whether the elements are of rows of which the values were lost.
        since_s: Time when the request was sent.
    """

    partition: str
    worker: int
    numbers: tuple[int, ...]
    is_lost: bool
    since_s: float


class DatasetReads:
    """Keeps the order of elements, asks heads ahead of need, and has what a head has lost read again.

    Args:
        declaration: Declaration of the flow.
        backend: Backend of the flow.
        master: Master of the flow.
        forms: Forms of columns; those of datasets are checked there.
    """

    def __init__(
        self, declaration: Declaration, backend: Backend, master: Master, forms: ColumnForms
    ) -> None:
        self._datasets = declaration.datasets
        self._sources = {name: number for number, name in enumerate(self._datasets)}
        self._backend = backend
        self._master = master
        self._held = master.held
        self._forms = forms
        self._positions: Mapping[str, list[int]] = {}
        self._orders: dict[str, ShardOrder] = {}
        self._open: dict[int, _Request] = {}
        self._serials = count(1)
        #: Of heads that are being started again: elements of rows that have lost their values, by partition.
        self._lost: dict[int, dict[str, set[int]]] = {}
        self._error: FlowError | None = None

    def begin(self, positions: Mapping[str, list[int]]) -> None:
        """Begin at these positions, by partition, which may change until the first request; then they are counted on."""
        self._positions = positions

    def __contains__(self, partition: str) -> bool:
        return partition in self._datasets

    @property
    def is_open(self) -> bool:
        """Whether a head reads."""
        return bool(self._open)

    # --- Rows ---

    def issue_again(self, group: SavedGroup, item: Mapping[str, Value]) -> None:
        """Have an element of a common save come before others; `item` is what `item_of` has said."""
        self._order(group.partition).issue_again(int(item["shard"]), int(item["number"]), group)  # type: ignore[arg-type]

    def waiting(self) -> list[tuple[SavedGroup, dict[str, Value]]]:
        """Return what was to be issued again and has no rows yet."""
        return [
            (one.again, {"shard": one.shard, "number": one.number})
            for order in self._orders.values()
            for one in order.again
            if one.again is not None
        ]

    def item_of(self, row_id: int) -> dict[str, Value] | None:
        """Return which element a row was made of, for a common save; None: it is of another source."""
        found = self._held.element(row_id)
        if found is None:
            return None
        worker, element = found
        dataset = list(self._datasets.values())[source_of(element)]
        return {"shard": dataset.heads.index(worker), "number": number_of(element)}

    def want(self, partition: str, n: int, ahead: int = 0) -> bool:
        """Ask for so many elements; returns whether they are there, or all up to the end or an error.

        Args:
            partition: Partition of the dataset.
            n: Elements that are needed.
            ahead: Elements that will be needed then. Few of them alone are not asked for: requests are not that small.
        """
        order, heads = self._order(partition), self._datasets[partition].heads
        away = [shard for shard, worker in enumerate(heads) if worker in self._lost]
        while True:
            order.plan(n + (ahead if self._backend.elements.reads_ahead else 0))
            if not order.n_unasked or (order.has(n) and 4 * order.n_unasked < ahead):
                break
            asked = order.ask(away)
            for shard, numbers in asked.items():
                self._ask(partition, heads[shard], numbers, is_lost=False)
            if not asked or self._open:
                break
            # All is answered, perhaps by the end of a shard: others take its place.
        return order.has(n)

    def check(self) -> None:
        """Check that nothing is lost.

        Raises:
            FlowError: an element of a row that has lost its values cannot be read again.
        """
        if self._error is not None:
            raise self._error

    def admit(self, partition: str) -> tuple[tuple[int, ...], dict[str, Value] | None] | None:
        """Make a group of the next element, which is there; None: all shards have ended.

        Returns:
            The ids of the rows, and the element if it is new, as `item_of`.

        Raises:
            FlowError: the element cannot be read.
        """
        one = self._order(partition).take()
        if one is None:
            return None
        assert one.value is not None
        ids = self._admit(partition, self._datasets[partition], one, one.value)
        return ids, {"shard": one.shard, "number": one.number} if one.again is None else None

    def _admit(self, partition: str, dataset: Dataset, one: Planned, value: Arrived) -> tuple[int, ...]:
        worker, tags = dataset.heads[one.shard], [value.tags] * self._master.plan.group
        again = one.again if one.again is not None and one.again.first_id != NEW else None
        ids = self._master.admit(partition, again=again, n_bytes=value.n_bytes, tags=tags)
        self._held.bind(ids, worker, element_id(self._sources[partition], one.number))
        self._write(partition, dataset, ids, worker, value)
        return ids

    def _write(
        self, partition: str, dataset: Dataset, ids: Sequence[int], worker: int, value: Arrived
    ) -> None:
        found = dict(zip(dataset.columns, value.columns, strict=True))
        for column, place in found.items():
            self._forms.check(partition, column, forms_of([place]), ids, dataset.name)
        # All rows of a group read one value.
        self._held.put(ids, {column: [place] * len(ids) for column, place in found.items()}, worker)

    def _order(self, partition: str) -> ShardOrder:
        if partition not in self._orders:
            self._orders[partition] = ShardOrder(self._positions[partition])
        return self._orders[partition]

    # --- Requests ---

    def _ask(self, partition: str, worker: int, numbers: list[int], *, is_lost: bool) -> None:
        numbers = sorted(numbers)
        for at in range(0, len(numbers), _REQUEST):
            serial, some = next(self._serials), tuple(numbers[at : at + _REQUEST])
            self._open[serial] = _Request(partition, worker, some, is_lost, time.monotonic())
            for event in self._backend.elements.read(worker, serial, self._sources[partition], some):
                self.loaded(event)

    # --- Events ---

    def loaded(self, event: Loaded) -> None:
        """A head has read what it was asked for. Answers of a process that has ended count no more."""
        answer = event.answer
        request = self._open.pop(answer.request, None)
        if request is None:
            return
        dataset = self._datasets[request.partition]
        shard = dataset.heads.index(request.worker)
        columns = answer.columns.places.values()
        found = [
            Arrived(tuple(column[i] for column in columns), n_bytes, tags)
            for i, (n_bytes, tags) in enumerate(zip(answer.sizes, answer.tags, strict=True))
        ]
        error = None
        if answer.failure is not None:
            error = FlowError(answer.failure.text)
            error.__cause__ = event.cause
        if request.is_lost:
            self._found_again(request, dataset, found, error)
            return
        order = self._order(request.partition)
        for number, value in zip(request.numbers, found, strict=False):
            order.arrived(shard, number, value)
        if error is not None:
            order.failed(shard, request.numbers[len(found)], error)
        elif answer.length is not None:
            order.ended(shard, answer.length, _name(dataset, shard))

    def _found_again(
        self, request: _Request, dataset: Dataset, found: list[Arrived], error: FlowError | None
    ) -> None:
        self._master.n_awaited -= len(request.numbers)
        source, rows = self._sources[request.partition], self._master.rows
        for number, value in zip(request.numbers, found, strict=False):
            ids = self._held.rows_of(request.worker, element_id(source, number))
            if not ids:
                # Its rows have gone meanwhile.
                self._backend.free({request.worker: [element_id(source, number)]})
                continue
            self._write(request.partition, dataset, ids, request.worker, value)
            rows.wrote(ids, dataset.columns)
        if len(found) < len(request.numbers) and self._error is None:
            name = _name(dataset, dataset.heads.index(request.worker))
            self._error = error or FlowError(
                f"{name} has no element {request.numbers[len(found)]}, which was read before: it is another one than it was"
            )

    def lose(self, worker: int) -> None:
        """A worker has ended that is started again: what it had read is read again when it is there."""
        for serial in [serial for serial, one in self._open.items() if one.worker == worker]:
            request = self._open.pop(serial)
            self._master.n_awaited -= len(request.numbers) if request.is_lost else 0
        self._master.n_awaited -= sum(map(len, self._lost.pop(worker, {}).values()))
        lost = self._lost[worker] = {}
        for partition, dataset in self._datasets.items():
            if worker not in dataset.heads:
                continue
            self._order(partition).lose(dataset.heads.index(worker))
            source = self._sources[partition]
            lost[partition] = {
                number_of(element)
                for element in self._held.elements_of(worker)
                if source_of(element) == source
            }
        self._master.n_awaited += sum(map(len, lost.values()))

    def join(self, worker: int) -> None:
        """A worker has been started again."""
        for partition, numbers in self._lost.pop(worker, {}).items():
            self._ask(partition, worker, list(numbers), is_lost=True)

    # --- What is known ---

    def explain(self, now_s: float) -> str:
        """Return a line for each head that reads; any thread may ask."""
        lines = []
        for one in list(self._open.values()):
            dataset = self._datasets[one.partition]
            again = " again" if one.is_lost else ""
            lines.append(
                f"\n{_name(dataset, dataset.heads.index(one.worker))}: worker {one.worker} reads {len(one.numbers)} "
                f"elements{again} since {now_s - one.since_s:.1f} s, the first is {one.numbers[0]}"
            )
        return "".join(lines)


def _name(dataset: Dataset, shard: int) -> str:
    return f"{dataset.name}: shard {shard} of {len(dataset.heads)}"
