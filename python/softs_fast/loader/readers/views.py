"""Tensors on the slots themselves: a block of slots is a batch, and is released when its last tensor is gone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ... import _core
from ...codecs import CustomCodec, as_codec
from ...configs import BatchConfig, TensorSpec
from ...errors import ConfigError
from ...market import Client, Medium, SegmentMedium, slot_stride
from ...tensors import ITEM_BYTES, torch_dtype
from .blocks import Blocks, Tensors
from .copying import has_rows

__all__ = ["BlockReader", "check_zero_copy"]


@dataclass(frozen=True, slots=True)
class _Field:
    """Where the tensor of a batch lies: its offset in bytes, everything else in items; `n_items` is what it spans."""

    name: str
    dtype: torch.dtype
    offset: int
    n_items: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def check_zero_copy(config: BatchConfig, medium_cls: Callable[..., Medium]) -> None:
    """Check that tensors can lie on the slots of such a medium.

    Raises:
        ConfigError: samples are not decoded as `BatchConfig` does it, a tensor has a codec of this package or is ragged,
            the medium is not in memory that the process shares, or a tensor would be unaligned; the text says what to do.
    """
    if not has_rows(config):
        raise ConfigError(
            f"zero_copy hands out what is in the slots, but {type(config).__name__}.decode makes something else of it"
        )
    own_read = isinstance(medium_cls, type) and issubclass(medium_cls, SegmentMedium)
    if not own_read or any(
        getattr(medium_cls, name) is not getattr(SegmentMedium, name) for name in ("read", "read_into")
    ):
        raise ConfigError(
            f"zero_copy needs slots that can be mapped: ShmMedium or FilesystemMedium, not {medium_cls!r}"
        )
    n_bytes, stride = config.nbytes(), slot_stride(medium_cls, config.nbytes())
    for spec in config.specs:
        if spec.ragged:
            raise ConfigError(
                f'zero_copy hands out what is in the slots, but tensor "{spec.name}" is ragged: the slots of a batch have '
                f"gaps of different sizes between its rows, so putting them end to end is a copy; leave out zero_copy"
            )
        if isinstance(as_codec(spec.codec), CustomCodec):
            continue
        if spec.codec is not None:
            raise ConfigError(
                f'zero_copy hands out what is in the slots, but tensor "{spec.name}" is stored as {spec.codec} and must '
                f"be decoded, which is a copy by itself; leave out one of the two"
            )
        item, offset = ITEM_BYTES[spec.dtype], config.get_offset(spec.name)
        if spec.numel and (offset % item or stride % item):
            raise ConfigError(
                f'zero_copy: tensor "{spec.name}" ({spec.dtype}) would be unaligned at byte {offset} of samples '
                f"of {n_bytes} bytes; order the tensors by item size, largest first, and make the sample a "
                f"multiple of {item} bytes, if need be by another tensor of uint8 [{-n_bytes % item or item}] "
                f"at its end"
            )


class BlockReader(Blocks):
    """Makes a batch of tensors of a block of slots, without a copy.

    Each tensor has a torch storage of its own, for torch.save refuses tensors of several dtypes on one.

    Args:
        config: Config of the tensors that a slot holds; one that `check_zero_copy` accepts.
        client: Client that has the slots, in blocks of `n_rows`.
        n_rows: Slots per block.
        n_blocks: Number of blocks.
    """

    def __init__(self, config: BatchConfig, client: Client, n_rows: int, n_blocks: int) -> None:
        super().__init__(client, n_rows, n_blocks)
        assert isinstance(client.medium, SegmentMedium)
        self._stride = client.medium.slot_stride
        self._fields = [self._field(spec, config.get_offset(spec.name)) for spec in config.specs]
        self._coded = [spec for spec in config.specs if spec.codec is not None]

    def fill(self, product_id: str, done: int, timeout_ms: int) -> int:
        """Take a block, waiting up to timeout_ms for it.

        Returns:
            How many rows there are now: all or `done`.
        """
        # A block that was not handed out is released first: the model has changed.
        self._batch = None
        lease = self._client.lease(product_id, timeout_ms)
        if lease is None:
            return done
        self._batch = self._views(lease)
        return self.n_rows

    def _views(self, lease: _core.Lease) -> Tensors:
        batch = {
            field.name: torch.frombuffer(
                lease, dtype=field.dtype, offset=field.offset, count=field.n_items
            ).as_strided_(field.shape, field.strides)
            if field.n_items
            else torch.empty(field.shape, dtype=field.dtype, device="cpu")
            for field in self._fields
        }
        for spec in self._coded:
            batch[spec.name] = spec._assemble([batch[spec.name]])
        return batch

    def _field(self, spec: TensorSpec, offset: int) -> _Field:
        # A codec of the user's, the only kind here, has one part: its bytes.
        (part,) = spec._parts()
        item, n_items = ITEM_BYTES[part.dtype], math.prod(part.shape)
        stride = self._stride // item
        strides = [math.prod(part.shape[i + 1 :]) for i in range(len(part.shape))]
        return _Field(
            spec.name,
            torch_dtype(part.dtype),
            offset,
            (self.n_rows - 1) * stride + n_items if n_items else 0,
            (self.n_rows, *part.shape),
            (stride, *strides),
        )
