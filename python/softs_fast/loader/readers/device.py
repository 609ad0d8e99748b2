"""From slots on a CUDA device to tensors there: packed into new memory, or on the slots themselves."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

from ... import _core, _kernels
from ...configs import BatchConfig, TensorSpec
from ...errors import ConfigError, PeerLost
from ...market import Arena, Client, CudaIpcMedium, Medium, taken_apart
from ...tensors import ITEM_BYTES, cuda
from .blocks import Blocks
from .copying import has_rows

__all__ = ["DeviceBlockReader", "DeviceReader", "check_on_device", "is_on_device"]

Tensors = dict[str, Any]


def is_on_device(medium_cls: Callable[..., Medium]) -> bool:
    """Return whether a class of mediums, or a `functools.partial` of one, is `CudaIpcMedium`."""
    made, _ = taken_apart(medium_cls)
    return isinstance(made, type) and issubclass(made, CudaIpcMedium)


def check_on_device(config: BatchConfig, *, zero_copy: bool) -> None:
    """Check that samples can be tensors on a device.

    Raises:
        ConfigError: samples are not decoded as `BatchConfig` does it, a tensor has a codec, is ragged, or would be
            unaligned in its slot; the text says what to do.
    """
    if not has_rows(config):
        raise ConfigError(
            f"CudaIpcMedium hands out what is in the slots, but {type(config).__name__}.decode makes something else of it; use ShmMedium"
        )
    for spec in config.specs:
        if spec.codec is not None:
            raise ConfigError(
                f'CudaIpcMedium hands out what is in the slots, but tensor "{spec.name}" is stored as {spec.codec}; leave out the codec, '
                "or use ShmMedium"
            )
        if spec.ragged:
            raise ConfigError(
                f'CudaIpcMedium moves whole slots, but tensor "{spec.name}" is ragged; use ShmMedium'
            )
        if zero_copy and spec.numel and config.get_offset(spec.name) % ITEM_BYTES[spec.dtype]:
            raise ConfigError(
                f'zero_copy: tensor "{spec.name}" ({spec.dtype}) would be unaligned at byte {config.get_offset(spec.name)} of its slot; '
                "order the tensors by item size, largest first"
            )


class DeviceReader:
    """Fills batches of new memory on the device, which a kernel copies all slots to that are there.

    The copies are made in the stream that is torch's current one when a batch is filled, and so belong to it as tensors
    do that were made there. Where the client has no device, batches are on the host.

    Args:
        config: Config of the tensors that a slot holds; one that `check_on_device` accepts.
        client: Client that has the slots.
        n_rows: Samples per batch.
    """

    def __init__(self, config: BatchConfig, client: Client, n_rows: int) -> None:
        self.n_rows = n_rows
        self._config = config
        self._client = client
        self._slots = _Slots(config, client)
        self._batch: Tensors | None = None
        # A finished slot to which the device of its writer still writes.
        self._unsettled: int | None = None

    def begin(self, product_id: str) -> None:
        """Nothing: the device works on its own."""

    def forget(self) -> None:
        """Drop a sample that was waited for."""
        if self._unsettled is not None:
            self._client.release_slot(self._unsettled)
            self._unsettled = None

    def fill(self, product_id: str, done: int, timeout_ms: int) -> int:
        """Copy samples into the rows from `done` on, waiting up to timeout_ms for the first.

        Returns:
            How many rows are filled now.

        Raises:
            PeerLost: a supplier was killed before its sample was on the device, and samples must come in order.
            WireError: a slot has no sample.
            SegmentError: the medium is closed.
        """
        client = self._client
        slot_ids: list[int] = []
        try:
            if self._unsettled is None:
                self._unsettled = client.request_sample(product_id, timeout_ms=timeout_ms)
            while self._unsettled is not None and self._settle(self._unsettled, timeout_ms, slot_ids):
                self._unsettled = None
                if done + len(slot_ids) < self.n_rows:
                    self._unsettled = client.request_sample(product_id, timeout_ms=0)
            if slot_ids:
                if self._batch is None:
                    self._batch = self._slots.empty(self.n_rows)
                self._slots.copy(slot_ids, self._batch, done)
        finally:
            self._slots.release(slot_ids)
        return done + len(slot_ids)

    def _settle(self, slot_id: int, timeout_ms: int, slot_ids: list[int]) -> bool:
        """Wait for a sample and append its slot to `slot_ids`, or release it if it is lost; False: it is not known yet."""
        try:
            is_there = self._slots.await_sample(slot_id, timeout_ms)
        except Exception:
            self._unsettled = None
            self._client.release_slot(slot_id)
            raise
        if is_there is None:
            return False
        if is_there:
            slot_ids.append(slot_id)
        else:
            self._client.release_slot(slot_id)
        return True

    def take(self) -> Tensors:
        """Hand out the batch, `{name: dtype [n_rows, *shape]}`; all rows must have been filled."""
        batch, self._batch = self._batch, None
        assert batch is not None
        return batch

    @property
    def is_starved(self) -> bool:
        """Whether nothing can come because the user holds all slots: never, the user gets copies."""
        return False


class DeviceBlockReader(Blocks):
    """Makes a batch of tensors of a block of slots on the device, without a copy.

    The block goes back when the last tensor on it is gone, after all that the stream was given until then in which the
    batch was made: what uses a batch in another stream must be waited for there. Where the client has no device,
    batches are copies on the host.

    Args:
        config: Config of the tensors that a slot holds; one that `check_on_device` accepts.
        client: Client that has the slots, in blocks of `n_rows`.
        n_rows: Slots per block.
        n_blocks: Number of blocks.
    """

    def __init__(self, config: BatchConfig, client: Client, n_rows: int, n_blocks: int) -> None:
        super().__init__(client, n_rows, n_blocks)
        self._config = config
        self._slots = _Slots(config, client)
        # A finished block to which the devices of its writers still write.
        self._unsettled: _core.Lease | None = None

    def forget(self) -> None:
        """Drop a block that was waited for."""
        self._unsettled = None

    @property
    def is_starved(self) -> bool:
        """As `Blocks.is_starved`; a block that is waited for is not held by the user."""
        return self._unsettled is None and super().is_starved

    def fill(self, product_id: str, done: int, timeout_ms: int) -> int:
        """Take a block, waiting up to timeout_ms for it.

        Returns:
            How many rows there are now: all or `done`. A block with a sample that was lost goes back as a whole.

        Raises:
            As `DeviceReader.fill`.
        """
        # A block that was not handed out goes back first: the model has changed.
        self._batch = None
        if self._unsettled is None:
            self._unsettled = self._client.lease(product_id, timeout_ms)
        lease = self._unsettled
        if lease is None:
            return done
        slot_ids = range(lease.first_slot, lease.first_slot + self.n_rows)
        for slot_id in slot_ids:
            is_there = self._slots.await_sample(slot_id, timeout_ms)
            if not is_there:
                if is_there is not None:
                    self._unsettled = None
                return done
        self._unsettled = None
        arena = self._slots.arena
        if arena is None:
            self._batch = self._slots.empty(self.n_rows)
            self._slots.copy(slot_ids, self._batch, 0)
        else:
            self._batch = self._views(arena, _Block(lease, slot_ids, self._slots))
        return self.n_rows

    def _views(self, arena: Arena, block: _Block) -> Tensors:
        batch: Tensors = {}
        for spec in self._config.specs:
            shape = (self.n_rows, *spec.shape)
            if not spec.numel:
                batch[spec.name] = cuda.empty(shape, spec.dtype, arena.device)
                continue
            strides = (arena.stride // ITEM_BYTES[spec.dtype], *_strides(spec.shape))
            address = arena.address(block.slot_ids[0]) + self._config.get_offset(spec.name)
            batch[spec.name] = cuda.tensor_over(address, spec.dtype, shape, strides, arena.device, block)
        return batch


class _Slots:
    """The slots of a client, and what is done with them in torch's current stream."""

    def __init__(self, config: BatchConfig, client: Client) -> None:
        medium = client.medium
        assert isinstance(medium, CudaIpcMedium)
        self.arena = medium.arena
        self._config = config
        self._client = client
        self._medium = medium

    def await_sample(self, slot_id: int, timeout_ms: int) -> bool | None:
        """Wait for the sample of a finished slot.

        Returns:
            Whether there is one, which is then on the device; False only if the order of samples allows for one to be
            lost. None: not within timeout_ms.

        Raises:
            As `DeviceReader.fill`.
        """
        try:
            if not self._medium.settle_within(slot_id, timeout_ms / 1000):
                return None
        except PeerLost:
            if self._client.is_ordered:
                raise
            return False
        return True

    def empty(self, n_rows: int) -> Tensors:
        """Return memory for a batch; each tensor has its own, so that labels can be kept without images."""
        if self.arena is None:
            # Filled by `copy`, from what was read.
            return self._config.decode_batch([bytes(self._config.nbytes())] * n_rows)
        device = self.arena.device
        return {
            spec.name: cuda.empty((n_rows, *spec.shape), spec.dtype, device) for spec in self._config.specs
        }

    def copy(self, slot_ids: Sequence[int], batch: Tensors, first_row: int) -> None:
        """Copy samples to the rows of a batch from `first_row` on, in torch's current stream: one launch per tensor."""
        arena = self.arena
        if arena is None:
            rows = self._config.decode_batch([self._medium.read(slot_id) for slot_id in slot_ids])
            for name, tensor in rows.items():
                batch[name][first_row : first_row + len(slot_ids)] = tensor
            return
        stream = cuda.current_stream(arena.device)
        for spec in self._config.specs:
            if spec.nbytes:
                target = batch[spec.name]
                table = self._rows(arena, spec, slot_ids, first_row)
                _kernels.cuda_pack(table, slot=target.data_ptr(), slot_bytes=target.nbytes, stream=stream)

    def release(self, slot_ids: Sequence[int]) -> None:
        """Give slots back, once the stream has done what was submitted to it.

        Also if CUDA refuses: then the device has failed, and reads nothing any more.
        """
        try:
            self.drain(slot_ids, None)
        finally:
            for slot_id in slot_ids:
                self._client.release_slot(slot_id)

    def drain(self, slot_ids: Sequence[int], stream: int | None) -> None:
        """Let suppliers write again once a stream has done what was submitted to it; None: torch's current one."""
        arena = self.arena
        if arena is None or not slot_ids:
            return
        current = cuda.current_stream(arena.device)
        for slot_id in slot_ids:
            drained = arena.drained[slot_id]
            drained.record(current if stream is None else stream)
            if self._client.scribbles:
                drained.wait(current)
                _slot_bytes(arena, slot_id).fill_(0xFF)
                drained.record(current)

    def _rows(
        self, arena: Arena, spec: TensorSpec, slot_ids: Sequence[int], first_row: int
    ) -> list[tuple[int, int, str, int, str]]:
        offset, item = self._config.get_offset(spec.name), ITEM_BYTES[spec.dtype]
        # As plain bytes where a slot has it unaligned, and for dtypes that the kernel does not know: nothing is cast.
        dtype, count = ("uint8", spec.nbytes) if item == 1 or offset % item else (spec.dtype, spec.numel)
        return [
            (arena.address(slot_id) + offset, count, dtype, row * spec.nbytes, dtype)
            for row, slot_id in enumerate(slot_ids, first_row)
        ]


class _Block:
    """Slots that tensors lie on. When the last of them is gone, the slots go back."""

    def __init__(self, lease: _core.Lease, slot_ids: Sequence[int], slots: _Slots) -> None:
        self.slot_ids = slot_ids
        self._lease: _core.Lease | None = lease
        self._slots = slots
        assert slots.arena is not None
        self._stream = cuda.current_stream(slots.arena.device)
        self._pid = os.getpid()

    def __del__(self) -> None:
        # In a fork the slots are the parent's. At the end of the interpreter CUDA may have ended before, and no call
        # waits for the slots.
        if self._pid == os.getpid():
            with contextlib.suppress(_kernels.CudaError):
                self._slots.drain(self.slot_ids, self._stream)
        self._lease = None


def _slot_bytes(arena: Arena, slot_id: int) -> Any:
    return cuda.tensor_over(
        arena.address(slot_id), "uint8", (arena.payload_bytes,), (1,), arena.device, arena
    )


def _strides(shape: Sequence[int]) -> list[int]:
    """Return the strides of contiguous memory, in items."""
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]
