"""The values of rows that one process holds, in shared memory from which other processes of the host copy them."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
import torch

from ...errors import ConfigError, FlowError, SegmentError
from ...process import Closing, check_process
from ...records import replace
from .columns import Places
from .encoding import empty_values, encode
from .hosts import HostLinks
from .memory import copy_memory
from .packed import fill, write_values
from .places import ALIGNMENT, MAX_BYTES, SEAL_BYTES, Place, SegmentAddress, seal_offset
from .segments import HEADER_BYTES, OwnSegment, RemoteSegment, bytes_free
from .space import Space
from .values import Value

__all__ = ["DataManager"]

_PAGE = 4096
# Serial numbers are odd, and look random, so that data is not mistaken for one.
_WORD = 1 << 64
_SERIAL_STEP = 2 * 0x9E3779B97F4A7C15 % _WORD

_Integers = np.ndarray[Any, np.dtype[np.int64]]
_Words = np.ndarray[Any, np.dtype[np.uint64]]


class DataManager(Closing):
    """The store of one process: it writes values of rows, and reads those of any process of this host and user.

    Each value begins at a multiple of 64 bytes, and has a serial number behind it. The values of one `put` lie one
    behind the other if there is room. Any thread may call. Memory that rows have left is used again; it belongs to the
    process until `close`, and is freed by the kernel if the process is killed.

    Args:
        worker: the number of this worker.
        max_bytes: bytes that values may take, as `n_bytes` counts them; None: what /dev/shm has free now. Holes between
            values may take as much again.
        links: serve the values to other hosts, and read theirs; the store closes them.

    Raises:
        ConfigError: a number is out of range.
        SegmentError: /dev/shm is missing or no tmpfs.
        SoftsError: the values cannot be served, see `HostLinks.serve`.

    Example:
        >>> with DataManager(0) as store:
        ...     places = store.put("seq", [7, 8], [torch.tensor([1, 2]), "text"])
        ...     store.get(places)
        [tensor([1, 2]), 'text']
    """

    def __init__(self, worker: int, *, max_bytes: int | None = None, links: HostLinks | None = None) -> None:
        if not 0 <= worker < 1 << 31:
            raise ConfigError(f"worker is {worker}; need 0 to 2^31 - 1")
        if max_bytes is None:
            max_bytes = min(bytes_free(), MAX_BYTES // 4)
        if not 0 < max_bytes <= MAX_BYTES // 4:
            raise ConfigError(f"max_bytes is {max_bytes}; need 1 to {MAX_BYTES // 4}")
        self.worker = worker
        self.max_bytes = max_bytes
        # Extents of different sizes leave holes, so there are more addresses than bytes.
        self._space = Space(-(-2 * max_bytes // _PAGE) * _PAGE)
        self._own: OwnSegment | None = OwnSegment(self._space.n_bytes)
        self._address = self._own.address
        self._links = links
        #: Bytes of values that came from other hosts.
        self.fetched_bytes = 0
        if links is not None:
            try:
                endpoint = links.serve(self._address.fd, HEADER_BYTES, self._address)
            except BaseException:
                self._own.close()
                raise
            self._address = replace(self._address, endpoint=endpoint)
        self._remote: dict[SegmentAddress, RemoteSegment] = {}
        #: By column and row, offset and bytes of the value.
        self._columns: dict[str, dict[int, tuple[int, int]]] = {}
        self._n_bytes = 0
        self._serial = secrets.randbits(64) | 1
        self._lock = threading.Lock()
        self._pid = os.getpid()

    # --- Of this process ---

    def put(self, column: str, ids: Sequence[int], values: Sequence[Value]) -> Places:
        """Write a column of some rows; a value that is there already is replaced. Either all is written or nothing.

        Args:
            column: Name of the column.
            ids: Ids of the rows, each once.
            values: Values of the rows: tensors on any device, lists of tensors, bytes, str, bool, int, float.

        Returns:
            The place of each value, a sequence of `Place`.

        Raises:
            FlowError: `max_bytes` or /dev/shm does not hold the values, a value is of another type, or numbers of ids
                and values differ.
            ForkedError: called in a fork of the process that made the store.
        """
        if len(ids) != len(values) or len(set(ids)) != len(ids):
            raise FlowError(
                f"column {column!r} has {len(values)} values for {len(ids)} ids, {len(set(ids))} different ones"
            )
        encoded = encode(column, values)
        n_bytes = np.array(encoded.n_bytes, np.int64)
        with self._lock:
            own = self._opened()
            offsets = self._take(own, column, _sizes(n_bytes))
            places = Places(
                self.worker,
                self._address,
                offsets,
                n_bytes,
                self._serials(len(ids)),
                tuple(encoded.forms),
                np.array(encoded.form_of, np.int64),
            )
            write_values(own.data, encoded, offsets)
            # The numbers are the last that is written: a place is valid from here on.
            own.words[places.seals] = places.serials
            self._register(own, column, ids, offsets.tolist(), encoded.n_bytes)
        return places

    def put_memory(
        self, column: str, row_id: int, sources: _Integers, at: _Integers, sizes: _Integers, *, n_bytes: int
    ) -> Place:
        """Write a value of `bytes` that lie in pieces in memory of this process; the one before is replaced.

        Args:
            column: Name of the column.
            row_id: Id of the row.
            sources: Addresses of the pieces, int64 [pieces].
            at: Offset of each piece in the value, int64 [pieces].
            sizes: Bytes of each piece, int64 [pieces].
            n_bytes: Bytes of the value. What is between pieces has any bits.

        Raises:
            FlowError: `max_bytes` or /dev/shm does not hold the value.
            ForkedError: called in a fork of the process that made the store.
        """
        lengths = np.array([n_bytes], np.int64)
        with self._lock:
            own = self._opened()
            offsets = self._take(own, column, _sizes(lengths))
            forms, form_of = (("bytes", ()),), np.zeros(1, np.int64)
            places = Places(self.worker, self._address, offsets, lengths, self._serials(1), forms, form_of)
            copy_memory(own.base + offsets[0] + at, sources, sizes)
            own.words[places.seals] = places.serials
            self._register(own, column, [row_id], offsets.tolist(), [n_bytes])
        return places[0]

    def free(self, ids: Iterable[int]) -> None:
        """Drop all columns of rows; ids of which nothing is here are skipped. Their places are invalid from then on.

        Raises:
            FlowError: the store is closed.
            ForkedError: called in a fork of the process that made the store.
        """
        wanted = list(ids)
        with self._lock:
            own = self._opened()
            self._remove(own, list(self._columns), wanted)

    def drop(self, column: str, ids: Sequence[int]) -> None:
        """Drop one column of rows, such as what a call has put that failed after that; see `free`.

        Args:
            column: Name of the column.
            ids: Ids of the rows; those of which nothing is here are skipped.

        Raises:
            FlowError: the store is closed.
            ForkedError: called in a fork of the process that made the store.
        """
        with self._lock:
            self._remove(self._opened(), [column], ids)

    @property
    def node(self) -> str:
        """What this process has in common with those that can open its segment."""
        return self._address.node

    @property
    def n_bytes(self) -> int:
        """Bytes that values take: each with its serial number, rounded up to 64."""
        return self._n_bytes

    @property
    def free_bytes(self) -> int:
        """Bytes that values may still take, by `max_bytes`."""
        return self.max_bytes - self._n_bytes

    # --- Of any process ---

    def get(self, places: Sequence[Place]) -> list[Value]:
        """Return copies of values, of any process on this host or linked ones; the same bits, dtypes and shapes.

        They are copies because the memory of a row is used again once it is freed. Tensors of one dtype and holder share
        one piece of new memory. The segments of others stay mapped, so that the values of a process that has ended can
        still be read, until a later process has its number.

        Args:
            places: Places that `put` has returned, here or elsewhere; `Places` as they are, or any of several
                holders.

        Raises:
            PeerLost: the process that holds a value has ended before anything of it was read here; or it is on another
                host and does not answer.
            FlowError: a row was freed; its memory is on another host without links, of another user, or not that of the
                place; or the store is closed.
            ForkedError: called in a fork of the process that made the store.
        """
        if isinstance(places, Places):
            return self._read(places)
        values: list[Value] = [False] * len(places)
        for mine in _by_segment(places):
            for i, value in zip(mine, self._read(Places.of([places[i] for i in mine])), strict=True):
                values[i] = value
        return values

    @contextmanager
    def mapped(self, place: Place) -> Iterator[int]:
        """Yield the address of the first byte of a value in the memory of its holder, for reading alone.

        This is for values that are not freed meanwhile. If one is, the end of the block raises.

        Args:
            place: Place of the value.

        Raises:
            PeerLost: the process that holds the value has ended before anything of it was read here.
            FlowError: the value was freed; its memory is on another host, of another user, or not that of the place; or
                the store is closed.
            ForkedError: called in a fork of the process that made the store.
        """
        segment, places = self._segment(place.segment, place.worker), Places.of([place])
        _check_serials(segment, places)
        yield segment.base + place.offset
        _check_serials(segment, places)

    def is_elsewhere(self, place: Place) -> bool:
        """Return whether a value is on another host, so that reading it takes the network."""
        return place.segment.node != self._address.node

    def fetch(self, column: str, ids: Sequence[int], places: Sequence[Place]) -> Sequence[Place]:
        """Copy values of other hosts into this store, where they are held like those of `put`. All or nothing.

        Args:
            column: Name of their column.
            ids: Ids of the rows, each once.
            places: Places of the values; may be of several holders.

        Returns:
            Their places here.

        Raises:
            PeerLost: a process that holds a value has ended, or sends nothing.
            FlowError: see `put` and `get`.
            ForkedError: called in a fork of the process that made the store.
        """
        if isinstance(places, Places):
            return self._fetch(column, list(ids), places)
        found: list[Place | None] = [None] * len(places)
        try:
            for mine in _by_segment(places):
                here = self._fetch(column, [ids[i] for i in mine], Places.of([places[i] for i in mine]))
                for i, place in zip(mine, here, strict=True):
                    found[i] = place
        except BaseException:
            self.drop(column, [row_id for row_id, place in zip(ids, found, strict=True) if place is not None])
            raise
        return [place for place in found if place is not None]

    def close(self) -> None:
        """Drop all rows; a second call does nothing. Others of this host that have read from this store can still read it."""
        if self._links is not None and os.getpid() == self._pid:
            self._links.close()
        with self._lock:
            own, self._own = self._own, None
            self._remote.clear()
            self._columns.clear()
            self._n_bytes = 0
            if own is not None:
                own.close()

    # --- Inside ---

    def _read(self, places: Places) -> list[Value]:
        if self._links is not None and places.segment.node != self._address.node:
            return self._read_elsewhere(self._links, places)
        segment = self._segment(places.segment, places.worker)
        _check_serials(segment, places)
        found = empty_values(places)
        fill(found, places, segment.data)
        # The holder changes the number before it uses the memory again, so all that was read is of the rows.
        _check_serials(segment, places)
        return found.values

    def _read_elsewhere(self, links: HostLinks, places: Places) -> list[Value]:
        with self._lock:
            self._opened()
        self.fetched_bytes += int(places.n_bytes.sum())
        found = empty_values(places)
        if len(found.pieces) == 1 and all(kind == "tensor" for kind, _ in places.forms):
            # All values are tensors of one dtype: they are received where they stay.
            memory = found.pieces[0].view(torch.uint8).numpy()
            # Not from where NumPy says that its memory begins: without a byte that is not where torch says it is.
            first = found.pieces[0].data_ptr()
            at = np.array([address for address, _, _ in found.copies], np.int64) - first
            links.read(places, memory, at)
            return found.values
        sizes = -(-places.n_bytes // ALIGNMENT) * ALIGNMENT
        at = np.cumsum(sizes) - sizes
        memory = np.empty(int(sizes.sum()), np.uint8)
        links.read(places, memory, at)
        here = places.moved(places.worker, places.segment, at, places.serials)
        found = empty_values(here)
        fill(found, here, memory)
        return found.values

    def _fetch(self, column: str, ids: list[int], places: Places) -> Places:
        if self._links is None:
            raise FlowError(
                f"rows of worker {places.worker} cannot be read: this store has no links to other hosts"
            )
        with self._lock:
            own = self._opened()
            sizes = _sizes(places.n_bytes)
            offsets = self._take(own, column, sizes)
        try:
            # Nothing refers to this memory yet, so nothing reads it meanwhile.
            self._links.read(places, own.data, offsets)
        except BaseException:
            with self._lock:
                self._space.give(offsets, sizes)
                self._n_bytes -= int(sizes.sum())
            raise
        with self._lock:
            here = places.moved(self.worker, self._address, offsets, self._serials(len(ids)))
            own.words[here.seals] = here.serials
            self._register(own, column, ids, offsets.tolist(), places.n_bytes.tolist())
            self.fetched_bytes += int(places.n_bytes.sum())
        return here

    def _remove(self, own: OwnSegment, columns: list[str], ids: Sequence[int]) -> None:
        """Drop values that are there. A column without rows goes, as copies of weights have new names again and again."""
        gone = []
        for column in columns:
            rows = self._columns.get(column, {})
            gone += [rows.pop(row_id) for row_id in ids if row_id in rows]
            if not rows:
                self._columns.pop(column, None)
        self._release(own, gone)

    def _register(
        self, own: OwnSegment, column: str, ids: Sequence[int], offsets: list[int], n_bytes: list[int]
    ) -> None:
        """Values are there; those that they replace are freed."""
        rows = self._columns.setdefault(column, {})
        replaced = [rows[row_id] for row_id in ids if row_id in rows]
        rows.update(zip(ids, zip(offsets, n_bytes, strict=True), strict=True))
        self._release(own, replaced)

    def _opened(self) -> OwnSegment:
        check_process(self._pid, f"the store of worker {self.worker}")
        if self._own is None:
            raise FlowError(f"the store of worker {self.worker} is closed")
        return self._own

    def _take(self, own: OwnSegment, column: str, sizes: _Integers) -> _Integers:
        total = int(sizes.sum())
        what = (
            f"column {column!r} of {len(sizes)} rows needs {total} bytes in the store of worker {self.worker}"
        )
        if total > self.free_bytes:
            raise FlowError(
                f"{what}, {self.free_bytes} of {self.max_bytes} are free; free rows, or raise max_bytes"
            )
        taken = self._space.take(sizes.tolist())
        if taken is None:
            raise FlowError(
                f"{what}, the largest of {sizes.max()}; the largest hole has {self._space.largest}; raise max_bytes"
            )
        offsets = np.array(taken, np.int64)
        try:
            own.allocate(int((offsets + sizes).max(initial=0)))
        except SegmentError as error:
            self._space.give(offsets, sizes)
            raise FlowError(f"{what}: {error}") from error
        self._n_bytes += total
        return offsets

    def _serials(self, n: int) -> _Words:
        numbers = np.uint64(self._serial) + np.arange(n, dtype=np.uint64) * np.uint64(_SERIAL_STEP)
        self._serial = (self._serial + n * _SERIAL_STEP) % _WORD
        return numbers

    def _release(self, own: OwnSegment, extents: list[tuple[int, int]]) -> None:
        if not extents:
            return
        offsets, n_bytes = np.fromiter(chain.from_iterable(extents), np.int64).reshape(-1, 2).T
        own.words[seal_offset(offsets, n_bytes) >> 3] = 0
        sizes = _sizes(n_bytes)
        self._space.give(offsets, sizes)
        self._n_bytes -= int(sizes.sum())

    def _segment(self, address: SegmentAddress, worker: int) -> OwnSegment | RemoteSegment:
        with self._lock:
            own = self._opened()
            if address == self._address:
                return own
            found = self._remote.get(address)
            if found is None:
                found = RemoteSegment(address, worker)
                # An older process of the same number does not keep its memory mapped here for ever.
                self._remote = {
                    other: segment for other, segment in self._remote.items() if segment.worker != worker
                }
                self._remote[address] = found
            return found


def _sizes(n_bytes: _Integers) -> _Integers:
    """Return how many bytes values take with their serial numbers."""
    found: _Integers = -(-(seal_offset(0, n_bytes) + SEAL_BYTES) // ALIGNMENT) * ALIGNMENT
    return found


def _by_segment(places: Sequence[Place]) -> list[list[int]]:
    """Return the numbers of the places of each segment."""
    found: dict[SegmentAddress, list[int]] = {}
    for i, place in enumerate(places):
        found.setdefault(place.segment, []).append(i)
    return list(found.values())


def _check_serials(segment: OwnSegment | RemoteSegment, places: Places) -> None:
    wrong = np.flatnonzero(segment.words[places.seals] != places.serials)
    if len(wrong):
        raise FlowError(
            f"{len(wrong)} of {len(places)} values of worker {places.worker} are gone, the first at "
            f"{places.offsets[wrong[0]]}: their rows were freed; ask the master for the rows that are there"
        )
