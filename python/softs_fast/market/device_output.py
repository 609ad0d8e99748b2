"""Writes a generator's tensors to the devices of the clients that ordered them, for `CudaIpcMedium`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import _core
from ..configs import BatchConfig, TensorSpec, torch_dtype_to_str
from ..errors import ConfigError
from ..tensors import ITEM_BYTES, cuda, import_numpy, import_torch, is_tensor, torch_dtype
from .generators import SlotOutput, flat_bytes, rows_of_bytes
from .mediums.cuda.remote_arena import DeviceSlot, Row
from .mediums.cuda.slot_ticket import RECEIPT_AT, RECEIPT_BYTES, Place
from .mediums.cuda.writers import Writers

__all__ = ["DeviceOutput"]


class DeviceOutput:
    """An `Output` that writes samples to the places that the slots' tickets name.

    Tensors on a device are packed, and floats cast to the dtypes of the config, by one kernel for all slots of a call;
    tensors on the host are copied. An order that came through the broker has plain memory as its slot: samples are
    written there, with the same casts.

    Args:
        config: layout of a sample; None if functions return bytes.
        slot_size: bytes of one sample.
    """

    is_bytes = False

    def __init__(self, config: BatchConfig | None, slot_size: int) -> None:
        self.writers = Writers(slot_size)
        self._config = config
        self._slot_size = slot_size
        self._on_host = SlotOutput(config)
        self._lent: Any = None

    def put(self, sample: object, slot: memoryview) -> None:
        """See `Output.put`."""
        if isinstance(sample, Mapping):
            self._put_tensors(sample, [slot], ())
        else:
            need = "bytes" if self._config is None else "a mapping of tensors, or bytes"
            data = flat_bytes(sample, need)
            if len(data) != self._slot_size:
                raise ConfigError(f"returned {len(data)} bytes, need slot_size={self._slot_size}")
            self._put_bytes([data], [slot])

    def put_all(self, samples: object, slots: Sequence[memoryview]) -> None:
        """See `Output.put_all`."""
        if isinstance(samples, Mapping):
            self._put_tensors(samples, slots, (len(slots),))
        else:
            sizes = [self._slot_size] * len(slots)
            self._put_bytes(rows_of_bytes(samples, sizes, with_config=self._config is not None), slots)

    def lend(self, slot: memoryview) -> Any:
        """Return tensors on the slot, or on the host if its device cannot be reached.

        Without a config it is one tensor, uint8 [slot_size].
        """
        self.writers.close_gone()
        head = _head(slot)
        place = None if head is None else self.writers.slot(head)
        if place is None or not place.arena.is_open or not place.arena.is_near:
            self._lent = memory = import_torch().empty(self._slot_size, dtype=import_torch().uint8)
            return memory if self._config is None else _parts_of(memory, self._config)
        self._lent = None
        # The function may write to the slot at once, in any stream.
        place.await_free()
        arena = place.arena
        memory = cuda.tensor_over(place.address, "uint8", (self._slot_size,), (1,), arena.device, arena)
        return memory if self._config is None else _parts_of(memory, self._config)

    def take_back(self, slot: memoryview) -> None:
        """Finish the slot, see `Output.take_back`; work in torch's current stream is waited for."""
        lent, self._lent = self._lent, None
        if lent is not None:
            self._put_bytes([lent.numpy()], [slot])
            return
        head = _head(slot)
        assert head is not None
        place = self.writers.slot(head)
        self._sign(slot, place, place.finish(cuda.current_stream(place.arena.device)))

    def close(self) -> None:
        """Close the arenas. Idempotent."""
        self.writers.close()

    def _put_bytes(self, rows: Sequence[Any], slots: Sequence[memoryview]) -> None:
        for row, slot in zip(rows, slots, strict=True):
            head = _head(slot)
            if head is None:
                slot[:] = row
            else:
                slot[RECEIPT_AT : RECEIPT_AT + RECEIPT_BYTES] = self.writers.store(head, row)

    def _put_tensors(
        self, sample: Mapping[str, Any], slots: Sequence[memoryview], rows: tuple[int, ...]
    ) -> None:
        config = self._config
        if config is None:
            raise ConfigError("returned a mapping, need bytes (tensors need batch_config)")
        config._check_names(sample)
        self.writers.close_gone()
        device = next((d for value in sample.values() if (d := _device_of(value)) is not None), None)
        heads = [_head(slot) for slot in slots]
        places = [None if head is None else self.writers.slot(head, device) for head in heads]
        # One client's slots at a time: a call may serve several clients.
        arenas = {
            id(place.arena): place.arena for place in places if place is not None and place.arena.is_open
        }
        for arena in arenas.values():
            chosen = [i for i, place in enumerate(places) if place is not None and place.arena is arena]
            self._write(sample, rows, arena.device, chosen, [(slots[i], places[i]) for i in chosen])
        rest = [i for i, place in enumerate(places) if place is None or not place.arena.is_open]
        if rest:
            self._write_on_host(sample, rows, rest, slots, places)

    def _write(
        self,
        sample: Mapping[str, Any],
        rows: tuple[int, ...],
        device: int,
        chosen: Sequence[int],
        targets: Sequence[tuple[memoryview, Any]],
    ) -> None:
        """Write rows of a batch, or a single sample, to slots of one arena."""
        assert self._config is not None
        keep: list[Any] = []
        table: list[list[Row]] = [[] for _ in chosen]
        copies: list[list[tuple[int, int, int]]] = [[] for _ in chosen]
        for spec in self._config.specs:
            offset = self._config.get_offset(spec.name)
            source = _source(spec, rows, sample[spec.name], device, offset)
            keep.append(source)
            if not spec.nbytes:
                continue
            if isinstance(source, import_numpy().ndarray):
                for i, row in enumerate(chosen):
                    copies[i].append((offset, source.ctypes.data + row * spec.nbytes, spec.nbytes))
            else:
                items = spec.numel
                name, out = torch_dtype_to_str(source.dtype), spec.dtype
                size = source.element_size()
                address = source.data_ptr()
                if name == out and (ITEM_BYTES[out] == 1 or offset % size or address % size):
                    # As plain bytes: dtypes that the kernel does not know, and offsets that are not aligned.
                    name, out, items, size = "uint8", "uint8", spec.nbytes, 1
                for i, row in enumerate(chosen):
                    table[i].append((address + row * items * size, items, name, offset, out))
        places = [place for _, place in targets]
        for place in places:
            place.await_free()
        written = places[0].arena.write(places, table, copies, keep)
        for (slot, place), where in zip(targets, written, strict=True):
            self._sign(slot, place, where)

    def _write_on_host(
        self,
        sample: Mapping[str, Any],
        rows: tuple[int, ...],
        chosen: Sequence[int],
        slots: Sequence[memoryview],
        places: Sequence[DeviceSlot | None],
    ) -> None:
        """Write rows of a batch to host memory: the segment's, or plain memory."""
        assert self._config is not None
        cast = {spec.name: _cast(spec, sample[spec.name]) for spec in self._config.specs}
        memories = []
        for i in chosen:
            place = places[i]
            memories.append(slots[i] if place is None else place.payload().data)
        if rows:
            part = (
                cast
                if len(chosen) == len(slots)
                else {name: value[list(chosen)] for name, value in cast.items()}
            )
            self._on_host.put_all(part, memories)
        else:
            self._on_host.put(cast, memories[0])
        for i in chosen:
            place = places[i]
            if place is not None:
                self._sign(slots[i], place, Place.IN_SEGMENT)

    def _sign(self, slot: memoryview, place: DeviceSlot, where: Place) -> None:
        slot[RECEIPT_AT : RECEIPT_AT + RECEIPT_BYTES] = self.writers.receipt(place, where)


def _head(slot: memoryview) -> Any:
    """Return the segment's slot under a view; None for plain memory."""
    return slot.obj if isinstance(slot.obj, _core.Lease) else None


def _device_of(value: object) -> int | None:
    return cuda.device_of(value) if is_tensor(value) else None


def _cast(spec: TensorSpec, value: Any) -> Any:
    """Return a value cast to the dtype of the spec if it has another float dtype."""
    np = import_numpy()
    if isinstance(value, np.ndarray | np.generic) and value.dtype.name in _FLOATS - {spec.dtype}:
        value = import_torch().from_numpy(np.ascontiguousarray(value))
    if not is_tensor(value) or not {name := torch_dtype_to_str(value.dtype), spec.dtype} <= _FLOATS:
        return value
    # To 16 bits by way of float32, as in the kernel.
    narrows = name == "float64" and ITEM_BYTES[spec.dtype] == 2
    return (value.float() if narrows else value).to(torch_dtype(spec.dtype))


def _source(spec: TensorSpec, rows: tuple[int, ...], value: Any, device: int, offset: int) -> Any:
    """Return the source of a copy: a contiguous tensor on the device, which the kernel casts, or an array on the host.

    Raises:
        ConfigError: another shape, or a dtype that cannot be cast.
    """
    if _device_of(value) is None:
        return import_numpy().ascontiguousarray(spec._checked(_cast(spec, value), rows=rows))
    if tuple(value.shape) != (*rows, *spec.shape):
        raise ConfigError(
            f'Shape mismatch: {tuple(value.shape)} != {(*rows, *spec.shape)}, expected by tensor "{spec.name}"'
        )
    name = torch_dtype_to_str(value.dtype)
    if name != spec.dtype:
        if name not in _FLOATS or spec.dtype not in _FLOATS:
            raise ConfigError(
                f'Dtype mismatch: {value.dtype} != {torch_dtype(spec.dtype)}, expected by tensor "{spec.name}"'
            )
        if offset % ITEM_BYTES[spec.dtype]:
            value = _cast(spec, value)
    tensor = value.detach()
    if not cuda.is_standin and cuda.device_of(tensor) != device:
        tensor = tensor.to(f"cuda:{device}")
    return tensor.contiguous()


def _parts_of(memory: Any, config: BatchConfig) -> dict[str, Any]:
    """Return the tensors of a sample as views of a tensor of bytes that is aligned for all of them.

    Raises:
        ConfigError: one would be unaligned.
    """
    tensors = {}
    for spec in config.specs:
        offset = config.get_offset(spec.name)
        if spec.numel and offset % ITEM_BYTES[spec.dtype]:
            raise ConfigError(
                f'tensor "{spec.name}" ({spec.dtype}) would be unaligned at byte {offset}; order the tensors by item '
                "size, largest first"
            )
        part = memory[offset : offset + spec.nbytes] if spec.numel else memory[:0]
        tensors[spec.name] = part.view(spec.torch_dtype).view(spec.shape)
    return tensors


#: Dtypes that the kernel casts to each other.
_FLOATS = frozenset({"float64", "float32", "float16", "bfloat16"})
