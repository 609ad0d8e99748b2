"""Layout of the tensors of a model in a snapshot: names, dtypes, shapes and offsets, the same for equal models."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Annotated

import torch
from torch import Tensor

from ..errors import ConfigError, SegmentError
from ..records import from_plain, most, span
from ..tensors import local_tensor, shard_of

__all__ = ["SnapshotLayout", "TensorEntry"]

# Tensors begin on cache lines.
_ALIGN_BYTES = 64
_MAX_TENSOR_BYTES = 1 << 40
_MAX_NAMED_DIFFERENCES = 3

# In the order in which a snapshot has them.
_DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
_ORDER = {name: number for number, name in enumerate(_DTYPES)}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

# Dtype, shape, names, part.
_Spec = tuple[str, tuple[int, ...], tuple[str, ...], str]
# The same, as another process may write it.
_Row = tuple[
    str,
    tuple[Annotated[int, span(0, _MAX_TENSOR_BYTES)], ...],
    Annotated[tuple[str, ...], most(1 << 20, least=1)],
    str,
]


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a snapshot.

    Attributes:
        names: Names of the tensor, sorted; several for tied tensors, which are stored once.
        dtype: Name of the dtype, for example "float32".
        shape: Shape of the tensor.
        offset: Offset of its first byte in a snapshot.
        n_bytes: Size of the tensor, bytes.
        part: Words for the shard of a distributed tensor that this is; "" for a whole tensor.
    """

    names: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    offset: int
    n_bytes: int
    part: str = ""

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype in torch."""
        return _DTYPES[self.dtype]

    def view(self, snapshot: Tensor) -> Tensor:
        """Return the tensor, as a view of a whole snapshot."""
        return snapshot[self.offset : self.offset + self.n_bytes].view(self.torch_dtype).view(self.shape)

    def __str__(self) -> str:
        """Return dtype, shape and part: "float32 [2, 3]"."""
        return f"{self.dtype} {list(self.shape)}" + (f", {self.part}" if self.part else "")


@dataclass(frozen=True, eq=False)
class SnapshotLayout:
    """Names, dtypes, shapes and offsets of the tensors of a snapshot.

    It does not depend on the order of the names, on devices or on strides. Tensors of one dtype lie together. Of a
    distributed tensor a process has its shard; layouts of other shards are other layouts.

    Attributes:
        tensors: Entries of the tensors, sorted by dtype, then by name.
        n_bytes: Size of a snapshot, bytes.
        manifest: Names, dtypes, shapes and parts as canonical JSON.
        digest: SHA-256 of the manifest; two layouts with equal digests are equal.

    Example:
        >>> layout = SnapshotLayout.of(torch.nn.Linear(3, 2).state_dict())
        >>> [(entry.names, str(entry), entry.offset) for entry in layout.tensors]
        [(('bias',), 'float32 [2]', 0), (('weight',), 'float32 [2, 3]', 64)]
    """

    tensors: tuple[TensorEntry, ...]
    n_bytes: int
    manifest: bytes
    digest: bytes

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> SnapshotLayout:
        """Return the layout of tensors. Names of the same memory, shape and strides share an entry.

        Raises:
            ConfigError: a tensor has no memory in this process, is not strided, or has a dtype that snapshots do not have.
        """
        by_memory: dict[object, tuple[Tensor, str, list[str]]] = {}
        for name, given in tensors.items():
            tensor = _local(name, given)
            place: object = _place(tensor) if tensor.numel() else name
            by_memory.setdefault(place, (tensor, shard_of(given), []))[2].append(name)
        return cls._laid_out(
            (_NAMES[tensor.dtype], tuple(tensor.shape), tuple(sorted(names)), part)
            for tensor, part, names in by_memory.values()
        )

    @classmethod
    def parse(cls, manifest: bytes) -> SnapshotLayout:
        """Return the layout with a manifest of another process.

        Raises:
            SegmentError: it is malformed.
        """
        try:
            layout = cls._laid_out(_parsed(manifest))
        except (ConfigError, ValueError, TypeError, RecursionError) as error:
            raise SegmentError(f"the manifest of a snapshot is malformed: {error}") from error
        if layout.manifest != manifest:
            raise SegmentError("the manifest of a snapshot is malformed: it is not canonical")
        return layout

    @classmethod
    def _laid_out(cls, specs: Iterable[_Spec]) -> SnapshotLayout:
        entries = []
        end = 0
        for dtype, shape, names, part in sorted(specs, key=lambda spec: (_ORDER[spec[0]], spec[2])):
            n_bytes = math.prod(shape) * _DTYPES[dtype].itemsize
            entries.append(TensorEntry(names, dtype, shape, end, n_bytes, part))
            end += -(-n_bytes // _ALIGN_BYTES) * _ALIGN_BYTES
        if end > _MAX_TENSOR_BYTES:
            raise ConfigError(
                f"the tensors have {end} bytes together; snapshots hold at most {_MAX_TENSOR_BYTES}"
            )
        rows = [[entry.dtype, entry.shape, entry.names, *filter(None, [entry.part])] for entry in entries]
        manifest = json.dumps(rows, separators=(",", ":")).encode()
        return cls(tuple(entries), end, manifest, hashlib.sha256(manifest).digest())

    def __eq__(self, other: object) -> bool:
        """Return whether both have the same tensors."""
        return isinstance(other, SnapshotLayout) and self.digest == other.digest

    def __hash__(self) -> int:
        """Return a hash of the digest."""
        return hash(self.digest)

    def difference(self, other: SnapshotLayout, mine: str = "here", theirs: str = "there") -> str:
        """Return in words how two layouts differ; "" if they do not.

        Args:
            other: the other layout.
            mine: says where this layout is, such as "on rank 0".
            theirs: says where the other one is.

        Example:
            >>> small = SnapshotLayout.of({"w": torch.zeros(2)})
            >>> small.difference(SnapshotLayout.of({"w": torch.zeros(3)}), "on rank 0", "on rank 1")
            '"w": float32 [2] on rank 0, float32 [3] on rank 1'
        """
        found = []
        for name in sorted(self.by_name.keys() | other.by_name.keys()):
            here, there = self._in_words(name), other._in_words(name)
            if here != there:
                found.append(f'"{name}": {here} {mine}, {there} {theirs}')
        more = len(found) - _MAX_NAMED_DIFFERENCES
        return "; ".join(found[:_MAX_NAMED_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")

    def bind(self, tensors: Mapping[str, Tensor], *, written: bool = False) -> list[Tensor]:
        """Return the local tensor of each entry, after a check that names, shapes, dtypes and ties are those of the layout.

        Args:
            tensors: All tensors by name.
            written: Whether the caller writes into them.

        Raises:
            ConfigError: They are not those of the layout, or one cannot be read or written in place.
        """
        if tensors.keys() == self.by_name.keys():
            local = {name: _local(name, tensor, written=written) for name, tensor in tensors.items()}
            if all(_fits(local[name], tensors[name], entry) for name, entry in self.by_name.items()) and all(
                self._is_tied(entry, local) for entry in self._tied
            ):
                return [local[entry.names[0]] for entry in self.tensors]
        other = SnapshotLayout.of(tensors)
        raise ConfigError(
            f"the tensors do not fit the snapshot: {self.difference(other, 'in the snapshot', 'given')}"
        )

    def bind_part(
        self, tensors: Mapping[str, Tensor], *, written: bool = False
    ) -> tuple[list[TensorEntry], list[Tensor]]:
        """Return the entry and the local tensor of each of some tensors.

        Raises:
            ConfigError: A tensor has another name, shape or dtype than those of the layout, or cannot be read or written
                in place.
        """
        entries, local = [], []
        for name, given in tensors.items():
            tensor = _local(name, given, written=written)
            entry = self.by_name.get(name)
            if entry is None or not _fits(tensor, given, entry):
                raise ConfigError(
                    f'tensor "{name}" is {tensor.dtype} {list(tensor.shape)}; the snapshot has {entry or "none"}'
                )
            entries.append(entry)
            local.append(tensor)
        return entries, local

    def scratch(self) -> Tensor:
        """Return memory for `average`, uint8 [n_bytes]."""
        return torch.empty(self.n_bytes, dtype=torch.uint8, device="cpu")

    def views(self, snapshot: Tensor) -> list[Tensor]:
        """Return the tensor of each entry, as a view of a whole snapshot.

        Args:
            snapshot: uint8 [n_bytes].
        """
        return [entry.view(snapshot) for entry in self.tensors]

    @cached_property
    def by_name(self) -> Mapping[str, TensorEntry]:
        """The entry of each name."""
        return {name: entry for entry in self.tensors for name in entry.names}

    @cached_property
    def runs(self) -> list[tuple[int, int, str]]:
        """Offset and number of items of each dtype, padding between the tensors included."""
        return self.runs_apart(frozenset())[0]

    def runs_apart(self, names: Set[str]) -> tuple[list[tuple[int, int, str]], list[tuple[int, int, str]]]:
        """Return the runs, as `runs`, of the tensors without one of some names, and of those that have only such names."""
        runs: tuple[list[tuple[int, int, str]], list[tuple[int, int, str]]] = ([], [])
        for (dtype, is_named), group in groupby(
            self.tensors, lambda entry: (entry.dtype, names >= set(entry.names))
        ):
            entries = list(group)
            n_bytes = entries[-1].offset + entries[-1].n_bytes - entries[0].offset
            runs[is_named].append((entries[0].offset, n_bytes // _DTYPES[dtype].itemsize, dtype))
        return runs

    @cached_property
    def _tied(self) -> list[TensorEntry]:
        return [entry for entry in self.tensors if len(entry.names) > 1]

    @staticmethod
    def _is_tied(entry: TensorEntry, tensors: Mapping[str, Tensor]) -> bool:
        return not entry.n_bytes or len({_place(tensors[name]) for name in entry.names}) == 1

    def _in_words(self, name: str) -> str:
        entry = self.by_name.get(name)
        if entry is None:
            return "absent"
        tied = [f'"{other}"' for other in entry.names if other != name]
        return f"{entry}, tied to {' and '.join(tied)}" if tied else str(entry)


def _local(name: str, tensor: Tensor, *, written: bool = False) -> Tensor:
    return local_tensor(name, tensor, dtypes=_NAMES, written=written)


def _place(tensor: Tensor) -> object:
    """Return what is equal for names of one tensor."""
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _fits(tensor: Tensor, given: Tensor, entry: TensorEntry) -> bool:
    """Return whether the local tensor of a given one is that of an entry; a copy of a shard is a plain tensor."""
    return (
        tensor.dtype is entry.torch_dtype
        and tensor.shape == entry.shape
        and shard_of(given) in ("", entry.part)
    )


def _parsed(manifest: bytes) -> tuple[_Spec, ...]:
    """Return the rows of a manifest; every value is checked, as it comes from another process."""
    rows = [row if len(row) == 4 else [*row, ""] for row in json.loads(manifest)]
    specs: tuple[_Spec, ...] = from_plain(tuple[_Row, ...], rows)
    if not {dtype for dtype, *_ in specs} <= _DTYPES.keys():
        raise ValueError("a dtype is unknown")
    names = [name for _, _, names, _ in specs for name in names]
    if len(set(names)) < len(names) or any(list(names) != sorted(names) for _, _, names, _ in specs):
        raise ValueError("a name occurs twice, or out of order")
    return specs
