"""The values of rows that one process holds, in shared memory from which other processes of the host copy them."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

import numpy as np
from torch import Tensor

from ... import _kernels
from ...errors import ConfigError, FlowError, ForkedError, SegmentError
from ..values import Value
from .encoding import Encoded, decode, empty_tensors, encode
from .places import ALIGNMENT, MAX_BYTES, SEAL_BYTES, Place, SegmentAddress, seal_offset, spread
from .segments import OwnSegment, RemoteSegment, bytes_free
from .space import Space

__all__ = ["DataManager"]

_PAGE = 4096
# Serial numbers are odd, and look random, so that data is not mistaken for one.
_SERIAL_STEP = 2 * 0x9E3779B97F4A7C15
_WORD = 1 << 64


class DataManager:
    """The store of one process: it writes values of rows, and reads those of any process of this host and user.

    Each value begins at a multiple of 64 bytes, and has a serial number behind it. The values of one `put` lie one
    behind the other if there is room. Any thread may call. Memory that rows have left is used again; it belongs to the
    process until `close`, and is freed by the kernel if the process is killed.

    Args:
        worker: the number of this worker.
        max_bytes: bytes that values may take, as `n_bytes` counts them; None: what /dev/shm has free now. Holes between
            values may take as much again.

    Raises:
        ConfigError: a number is out of range.
        SegmentError: /dev/shm is missing or no tmpfs.

    Example:
        >>> with DataManager(0) as store:
        ...     places = store.put("seq", [7, 8], [torch.tensor([1, 2]), "text"])
        ...     store.get(places)
        [tensor([1, 2]), 'text']
    """

    def __init__(self, worker: int, *, max_bytes: int | None = None) -> None:
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
        self._remote: dict[SegmentAddress, RemoteSegment] = {}
        self._rows: dict[int, dict[str, Place]] = {}
        self._n_bytes = 0
        self._serial = secrets.randbits(64) | 1
        self._lock = threading.Lock()
        self._pid = os.getpid()

    # --- Of this process ---

    def put(self, column: str, ids: Sequence[int], values: Sequence[Value]) -> tuple[Place, ...]:
        """Write a column of some rows; a value that is there already is replaced. Either all is written or nothing.

        Args:
            column: its name.
            ids: of the rows, each once.
            values: of the rows: tensors on any device, lists of tensors, bytes, str, bool, int, float.

        Raises:
            FlowError: `max_bytes` or /dev/shm does not hold the values, a value is of another type, or numbers of ids
                and values differ.
            ForkedError: called in a fork of the process that made the store.
        """
        if len(ids) != len(values) or len(set(ids)) != len(ids):
            raise FlowError(
                f"column {column!r} has {len(values)} values for {len(ids)} ids, {len(set(ids))} different ones"
            )
        encoded = [encode(column, value) for value in values]
        sizes = [_size(one.n_bytes) for one in encoded]
        with self._lock:
            own = self._opened()
            offsets = self._take(own, column, sizes)
            places = self._placed(encoded, offsets)
            _write(own, encoded, offsets)
            seals = [seal_offset(place.offset, place.n_bytes) >> 3 for place in places]
            # The numbers are the last that is written: a place is valid from here on.
            own.words[seals] = np.array([place.serial for place in places], np.uint64)
            replaced = []
            for row_id, place in zip(ids, places, strict=True):
                row = self._rows.setdefault(row_id, {})
                if column in row:
                    replaced.append(row[column])
                row[column] = place
            self._release(own, replaced)
        return places

    def free(self, ids: Iterable[int]) -> None:
        """Drop all columns of rows; ids of which nothing is here are skipped. Their places are invalid from then on.

        Raises:
            FlowError: the store is closed.
            ForkedError: called in a fork of the process that made the store.
        """
        with self._lock:
            own = self._opened()
            rows = [self._rows.pop(row_id) for row_id in ids if row_id in self._rows]
            self._release(own, [place for row in rows for place in row.values()])

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
        """Return copies of values, of any process on this host; the same bits, dtypes and shapes.

        They are copies because the memory of a row is used again once it is freed. Tensors of one dtype share one piece
        of new memory. The segments of others stay mapped, so that the values of a process that has ended can still be
        read, until a later process has its number.

        Args:
            places: that `put` has returned, here or elsewhere.

        Raises:
            PeerLost: the process that holds a value has ended before anything of it was read here.
            FlowError: a row was freed; its memory is on another host, of another user, or not that of the place; or the
                store is closed.
            ForkedError: called in a fork of the process that made the store.
        """
        parts = [part for place in places for part in place.parts]
        tensors = empty_tensors(parts)
        values: list[Value] = [False] * len(places)
        by_segment: dict[SegmentAddress, list[int]] = {}
        first = 0
        firsts = []
        for i, place in enumerate(places):
            by_segment.setdefault(place.segment, []).append(i)
            firsts.append(first)
            first += len(place.parts)
        for address, of_segment in by_segment.items():
            segment = self._segment(address, places[of_segment[0]].worker)
            here = [places[i] for i in of_segment]
            _check_serials(segment, here)
            copies: list[tuple[int, int, int]] = []
            for i, place in zip(of_segment, here, strict=True):
                if place.kind == "tensor":
                    tensor = tensors[firsts[i]]
                    copies.append((tensor.data_ptr(), place.offset, place.n_bytes))
                    values[i] = tensor
                elif place.kind == "tensors":
                    mine = tensors[firsts[i] : firsts[i] + len(place.parts)]
                    for tensor, at in zip(mine, spread(place.parts)[0], strict=True):
                        copies.append((tensor.data_ptr(), place.offset + at, tensor.nbytes))
                    values[i] = mine
                else:
                    data = segment.data[place.offset : place.offset + place.n_bytes].tobytes()
                    values[i] = decode(place, data)
            _kernels.snapshot_scatter(segment.base, copies)
            # The holder changes the number before it uses the memory again, so all that was read is of the rows.
            _check_serials(segment, here)
        return values

    def close(self) -> None:
        """Drop all rows; a second call does nothing. Others that have read from this store can still read it."""
        with self._lock:
            own, self._own = self._own, None
            self._remote.clear()
            self._rows.clear()
            self._n_bytes = 0
            if own is not None:
                own.close()

    def __enter__(self) -> DataManager:
        """Return the store."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    # --- Inside, with the lock ---

    def _opened(self) -> OwnSegment:
        if os.getpid() != self._pid:
            raise ForkedError(f"the store of worker {self.worker} is of process {self._pid}; make one here")
        if self._own is None:
            raise FlowError(f"the store of worker {self.worker} is closed")
        return self._own

    def _take(self, own: OwnSegment, column: str, sizes: list[int]) -> list[int]:
        total = sum(sizes)
        what = (
            f"column {column!r} of {len(sizes)} rows needs {total} bytes in the store of worker {self.worker}"
        )
        if total > self.free_bytes:
            raise FlowError(
                f"{what}, {self.free_bytes} of {self.max_bytes} are free; free rows, or raise max_bytes"
            )
        offsets = self._space.take(sizes)
        if offsets is None:
            raise FlowError(
                f"{what}, the largest of {max(sizes)}; the largest hole has {self._space.largest}; raise max_bytes"
            )
        try:
            own.allocate(max((start + size for start, size in zip(offsets, sizes, strict=True)), default=0))
        except SegmentError as error:
            self._space.give(zip(offsets, sizes, strict=True))
            raise FlowError(f"{what}: {error}") from error
        self._n_bytes += total
        return offsets

    def _placed(self, encoded: list[Encoded], offsets: list[int]) -> tuple[Place, ...]:
        worker, address, serial = self.worker, self._address, self._serial
        places = []
        for one, offset in zip(encoded, offsets, strict=True):
            places.append(Place(worker, address, offset, one.n_bytes, serial, one.kind, one.parts))
            serial = (serial + _SERIAL_STEP) % _WORD
        self._serial = serial
        return tuple(places)

    def _release(self, own: OwnSegment, places: list[Place]) -> None:
        if not places:
            return
        own.words[[seal_offset(place.offset, place.n_bytes) >> 3 for place in places]] = 0
        extents = [(place.offset, _size(place.n_bytes)) for place in places]
        self._space.give(extents)
        self._n_bytes -= sum(size for _, size in extents)

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


def _size(n_bytes: int) -> int:
    """Return how many bytes a value takes."""
    return -(-(seal_offset(0, n_bytes) + SEAL_BYTES) // ALIGNMENT) * ALIGNMENT


def _write(own: OwnSegment, encoded: list[Encoded], offsets: list[int]) -> None:
    sources: list[tuple[int, Tensor]] = []
    for one, offset in zip(encoded, offsets, strict=True):
        if one.kind == "tensor":
            sources.append((offset, one.tensors[0]))
        elif one.kind == "tensors":
            sources += zip([offset + at for at in spread(one.parts)[0]], one.tensors, strict=True)
        elif one.data:
            own.data[offset : offset + one.n_bytes] = np.frombuffer(one.data, np.uint8)
    sources = [(offset, tensor) for offset, tensor in sources if tensor.numel()]
    if sources:
        pointers = [tensor.data_ptr() for _, tensor in sources]
        # One native call copies between addresses; those of the sources are counted from the lowest.
        lowest = min(pointers)
        rows: list[tuple[int, int, int]] = [
            (own.base + offset, pointer - lowest, tensor.nbytes)
            for (offset, tensor), pointer in zip(sources, pointers, strict=True)
        ]
        _kernels.snapshot_scatter(lowest, rows)


def _check_serials(segment: OwnSegment | RemoteSegment, places: list[Place]) -> None:
    words: Any = segment.words
    found = words[[seal_offset(place.offset, place.n_bytes) >> 3 for place in places]]
    wrong = np.nonzero(found != np.array([place.serial for place in places], np.uint64))[0]
    if len(wrong):
        first = places[int(wrong[0])]
        raise FlowError(
            f"{len(wrong)} of {len(places)} values of worker {first.worker} are gone, the first at {first.offset}: their "
            "rows were freed; ask the master for the rows that are there"
        )
