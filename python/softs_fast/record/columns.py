"""Columns: the tensors of a shard, each with one item per sample, and how they become batches and samples again.

A tensor of a codec is recorded as decoded, one with `TopK` as its three parts. A ragged tensor becomes its values, of all
samples end to end, and the offset at which each sample begins.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np

from ..codecs import Field, TopK, TopKLogits, as_codec, parts_of
from ..configs import BatchConfig, TensorSpec
from ..errors import ConfigError
from ..tensors import ITEM_BYTES, RaggedTensor, array_dtype, checked_value, import_torch, on_host, tensor_over

__all__ = [
    "SEQUENCE",
    "Array",
    "Column",
    "Rows",
    "batch_of",
    "columns_of",
    "first_difference",
    "row_bytes",
    "rows_of",
    "samples_of",
    "served_config",
]

Array = np.ndarray[Any, Any]
#: Column of the numbers of the samples, uint64 [n].
SEQUENCE = "sequence"


class Column(NamedTuple):
    """A tensor of a shard, `dtype [n_items, *shape]`.

    Attributes:
        name: Name in the file.
        dtype: Dtype, as in `TensorSpec`; uint64 for the numbers of the samples.
        shape: Shape of an item.
        kind: `"rows"` for an item per sample, `"offsets"` for one more, `"values"` for those of a ragged tensor, of which
            each sample has its own number.
        most: Greatest number of values of a sample; 1 for other kinds.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: Literal["rows", "offsets", "values"] = "rows"
    most: int = 1

    @property
    def item_bytes(self) -> int:
        """Bytes of an item."""
        return math.prod(self.shape) * ITEM_BYTES.get(self.dtype, 8)

    def empty(self, n_items: int) -> Array:
        """Return memory for so many items, with the dtype that carries their bits in numpy."""
        return np.empty((n_items, *self.shape), array_dtype(self.dtype))


def columns_of(config: BatchConfig) -> tuple[Column, ...]:
    """Return the columns of a config in the order of a file: items of many bytes first, so that all tensors are aligned.

    Raises:
        ConfigError: Two columns would have one name, or a subclass decodes the samples.
    """
    if getattr(config.decode, "__func__", None) is not BatchConfig.decode:
        raise ConfigError(
            f"{type(config).__name__}.decode makes something else of samples than named tensors; record with a BatchConfig"
        )
    columns = [Column(SEQUENCE, "uint64", ())]
    for spec in config.specs:
        if spec.ragged:
            if 0 in spec.shape[1:]:
                raise ConfigError(
                    f'tensor "{spec.name}" is ragged and has no elements, so it cannot be recorded; remove it from batch_config'
                )
            columns += [
                Column(f"{spec.name}.values", spec.dtype, spec.shape[1:], "values", spec.shape[0]),
                Column(f"{spec.name}.offsets", "int64", (), "offsets"),
            ]
        elif parts := _parts(spec):
            columns += [Column(name, dtype, shape) for name, shape, dtype in parts]
        else:
            columns.append(Column(spec.name, spec.dtype, spec.shape))
    names = [column.name for column in columns]
    for name in names:
        if names.count(name) > 1 or name == "__metadata__":
            raise ConfigError(
                f'a tensor named "{name}" cannot be recorded: shards use this name; rename the tensor in batch_config'
            )
    return tuple(sorted(columns, key=lambda column: -ITEM_BYTES.get(column.dtype, 8)))


def row_bytes(columns: Sequence[Column]) -> int:
    """Return the bytes of the longest sample."""
    return sum(column.item_bytes * column.most for column in columns)


def served_config(config: BatchConfig) -> BatchConfig:
    """Return the config with which a recording is served again: without codecs that may round decoded tensors anew."""
    return BatchConfig([spec if _parts(spec) else replace(spec, codec=None) for spec in config.specs])


def first_difference(recorded: BatchConfig, given: BatchConfig) -> str | None:
    """Describe the first difference of a config from the recorded one; return None if there is no difference."""
    for old, new in itertools.zip_longest(recorded.specs, given.specs):
        if old is None or new is None:
            where = "only in the recording" if new is None else "not in the recording"
            return f'tensor "{(old or new).name}" is {where}'
        for field in ("name", "shape", "dtype", "codec", "ragged"):
            before, now = getattr(old, field), getattr(new, field)
            if before != now:
                return f'tensor "{old.name}" has {field} {before!r} in the recording, and {now!r} here'
    return None


class Rows:
    """Samples in columns.

    Args:
        columns: Columns of a shard.
        arrays: Items of each column by name; for a column of offsets the lengths of the samples, int64 [n].
    """

    def __init__(self, columns: Sequence[Column], arrays: dict[str, Array]) -> None:
        self.columns = columns
        self.arrays = arrays

    @property
    def n(self) -> int:
        """Number of samples."""
        return len(self.arrays[SEQUENCE])

    def cut(self, start: int, stop: int) -> Rows:
        """Return some of the samples, on the same memory."""
        arrays = {}
        for column in self.columns:
            array = self.arrays[column.name]
            if column.kind == "values":
                lengths = self.lengths(column)
                first = int(lengths[:start].sum())
                arrays[column.name] = array[first : first + int(lengths[start:stop].sum())]
            else:
                arrays[column.name] = array[start:stop]
        return Rows(self.columns, arrays)

    def lengths(self, column: Column) -> Array:
        """Return the lengths of the samples of a column of values, int64 [n]."""
        return self.arrays[column.name.removesuffix("values") + "offsets"]


def rows_of(config: BatchConfig, columns: Sequence[Column], batch: Any, numbers: Array) -> Rows:
    """Return the samples of a batch in columns, on its memory where it is on the host.

    Args:
        config: Config of the samples.
        columns: Its columns.
        batch: Batch of a loader, `{name: dtype [n, *shape]}`.
        numbers: Numbers of the samples, uint64 [n].

    Raises:
        ConfigError: It is something else.
    """
    if not isinstance(batch, Mapping) or list(batch) != config.tensor_names:
        raise ConfigError(
            f"a batch to record must map the names {config.tensor_names} to tensors, got {type(batch).__name__}"
        )
    n = len(numbers)
    arrays: dict[str, Array] = {SEQUENCE: numbers}
    for spec in config.specs:
        value = batch[spec.name]
        if spec.ragged:
            lengths = on_host(checked_value(f"{spec.name}.lengths", "int64", (n,), value.lengths))
            shape = (int(lengths.sum()), *spec.shape[1:])
            arrays[f"{spec.name}.offsets"] = lengths
            arrays[f"{spec.name}.values"] = _array(f"{spec.name}.values", spec.dtype, shape, value.values)
        elif parts := _parts(spec):
            for (name, shape, dtype), tensor in zip(parts, value, strict=True):
                arrays[name] = _array(name, dtype, (n, *shape), tensor)
        else:
            arrays[spec.name] = _array(spec.name, spec.dtype, (n, *spec.shape), value)
    return Rows(columns, arrays)


def batch_of(config: BatchConfig, arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Return a batch, `{name: dtype [n, *shape]}`, on the memory of its columns; the inverse of `rows_of`."""
    batch: dict[str, Any] = {}
    for spec in config.specs:
        if spec.ragged:
            batch[spec.name] = RaggedTensor(
                tensor_over(spec.dtype, arrays[f"{spec.name}.values"]),
                import_torch().from_numpy(arrays[f"{spec.name}.offsets"]),
            )
        elif parts := _parts(spec):
            batch[spec.name] = TopKLogits(*(tensor_over(dtype, arrays[name]) for name, _, dtype in parts))
        else:
            batch[spec.name] = tensor_over(spec.dtype, arrays[spec.name])
    return batch


def _rows(value: Any) -> Sequence[Any]:
    """Return the rows of a tensor, of `TopKLogits` or of a `RaggedTensor`, one per sample."""
    if hasattr(value, "lengths"):
        return list(value.unbind())
    if isinstance(value, tuple):
        return [type(value)(*row) for row in zip(*value, strict=True)]
    return list(value.unbind())


def samples_of(batch: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the samples of a batch, `{name: dtype [*shape]}` each, on its memory."""
    rows = {name: _rows(value) for name, value in batch.items()}
    return [dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True)]


def _array(name: str, dtype: str, shape: tuple[int, ...], value: Any) -> Array:
    return on_host(checked_value(name, dtype, shape, value))


def _parts(spec: TensorSpec) -> list[tuple[str, tuple[int, ...], str]]:
    """Return name, shape and dtype of the parts of a tensor with the codec TopK; none for any other tensor."""
    codec = as_codec(spec.codec)
    if not isinstance(codec, TopK):
        return []
    parts = parts_of(codec, Field(spec.name, spec.shape, spec.dtype))
    return [
        (f"{spec.name}.{field}", part.shape, part.dtype)
        for field, part in zip(TopKLogits._fields, parts, strict=True)
    ]
