"""Tensors in memory that all ranks of a group have mapped; they are reduced without staging copies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from softs_fast.collectives import agreement
from softs_fast.collectives.meter import Progress, counts_errors
from softs_fast.collectives.probe import best_time, slowest
from softs_fast.collectives.strategy import ReduceOp
from softs_fast.collectives.tensors import DTYPE_CODES, dtype_code, name_of, op_code
from softs_fast.errors import ConfigError
from softs_fast.tensors import local_tensor, mark_written

if TYPE_CHECKING:
    from softs_fast import _kernels

ShapeAndDtype = tuple[Sequence[int], torch.dtype]
Spec = torch.Tensor | ShapeAndDtype

# Tensors begin on cache lines, so that two ranks never store to the same line.
_ALIGN_BYTES = 128
# For results larger than this, non-temporal stores may be faster; measured when the bucket is made.
_MAYBE_STREAM_BYTES = 1 << 23


class Bucket:
    """Tensors by name, in shared memory; made by `ShmStrategy.bucket`.

    Attributes:
        views: this rank's tensors, zero at first. Gradients may live here: `parameter.grad = bucket.views[name]`.
        results: tensors with the result of a reduction: the views themselves for a private bucket, else memory of all
            ranks, which is read-only by convention and valid until the next reduction of this bucket.
        private: whether the result is stored in each rank's views.
    """

    def __init__(
        self,
        group: _kernels.Group,
        region: _kernels.Region,
        plan: Plan,
        private: bool,
        tag: int,
        progress: Progress,
    ) -> None:
        self._group = group
        self._progress = progress
        self._region = region
        self._plan = plan
        self._tag = tag
        self._stream = False
        self.private = private
        self.views = plan.cut(region.part(group.rank))
        self.results = self.views if private else plan.cut(region.result())

    @classmethod
    def create(
        cls,
        group: _kernels.Group,
        plan: Plan,
        *,
        private: bool,
        number: int,
        progress: Progress,
    ) -> Bucket:
        """Make a bucket, with all ranks of the group.

        Raises:
            ConfigError: ranks pass different arguments, or the bucket is too large.
            SegmentError: no memory; then no rank has a bucket.
            PeerLost: a rank died, stopped or left.
        """
        tag = agreement.tag_of({"": f"{number} {private}", **plan.manifest})
        region = group.share(plan.n_bytes) if group.barrier(tag) else None
        if region is None:
            what = f"bucket {number}, {'private' if private else 'with one result'}"
            raise ConfigError(agreement.difference(group, what, plan.manifest))
        bucket = cls(group, region, plan, private, tag, progress)
        bucket._choose_stores()
        return bucket

    @counts_errors("all_reduce")
    def all_reduce(self, op: ReduceOp | str = ReduceOp.MEAN) -> Mapping[str, torch.Tensor]:
        """Reduce all tensors over all ranks; return `results`.

        Raises:
            ConfigError: another rank makes another call, or the group is closed or was rebuilt, which ends its buckets.
            PeerLost: a rank died, stopped or left; all contents are undefined.
        """
        for dtype, begin, count in self._plan.runs:
            agreed = self._group.all_reduce_region(
                self._region,
                begin,
                count,
                not self.private,
                self._stream,
                dtype_code(dtype),
                op_code(op, dtype),
                1.0,
                self._tag,
            )
            if not agreed:
                raise ConfigError(agreement.difference(self._group, f"{op} of a bucket", self._plan.manifest))
        # All tensors of a part share a version counter.
        mark_written(list(self.results.values())[:1])
        self._progress.completed += 1
        return self.results

    def _choose_stores(self) -> None:
        """Measure on the bucket itself, while it is all zeros, whether non-temporal stores are faster."""
        if self.private or self._group.size == 1 or self._plan.n_bytes < _MAYBE_STREAM_BYTES:
            return
        times = []
        for stream in (False, True):
            self._stream = stream
            self.all_reduce(ReduceOp.MAX)
            times.append(best_time(self._group, 2, lambda: self.all_reduce(ReduceOp.MAX)))
        usual, past = slowest(self._group, times)
        self._stream = past < usual


class Plan:
    """Offsets of the tensors: those of one dtype are adjacent, so that they are reduced in one run.

    Args:
        specs: The same as for `ShmStrategy.bucket`.

    Raises:
        ConfigError: a tensor cannot be reduced; the text names it.
    """

    def __init__(self, specs: Mapping[str, Spec]) -> None:
        self._shapes: dict[str, tuple[torch.dtype, tuple[int, ...], int]] = {}
        self.manifest: dict[str, str] = {}
        self.runs: list[tuple[torch.dtype, int, int]] = []
        wanted = {name: _wanted(name, spec) for name, spec in sorted(specs.items())}
        at = 0
        for dtype in dict.fromkeys(dtype for _, dtype in wanted.values()):
            begin = at
            for name, (shape, of) in wanted.items():
                if of is dtype:
                    self._shapes[name] = (dtype, shape, at)
                    self.manifest[name] = f"{name_of(dtype)} {list(shape)}"
                    n_bytes = math.prod(shape) * dtype.itemsize
                    at += (n_bytes + _ALIGN_BYTES - 1) // _ALIGN_BYTES * _ALIGN_BYTES
            self.runs.append((dtype, begin, (at - begin) // dtype.itemsize))
        self.n_bytes = max(at, _ALIGN_BYTES)

    def cut(self, memory: _kernels.Part) -> dict[str, torch.Tensor]:
        """Return the tensors in a part; each keeps it alive."""
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        return {
            name: whole[at : at + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
            for name, (dtype, shape, at) in self._shapes.items()
        }


def _wanted(name: str, spec: Spec) -> tuple[tuple[int, ...], torch.dtype]:
    """Return shape and dtype of a tensor; those of the local shard of a distributed one."""
    if isinstance(spec, torch.Tensor) and not spec.is_meta:
        spec = local_tensor(name, spec, dtypes=DTYPE_CODES, written=False)
    shape, dtype = (spec.shape, spec.dtype) if isinstance(spec, torch.Tensor) else spec
    if dtype not in DTYPE_CODES:
        known = ", ".join(map(name_of, DTYPE_CODES))
        raise ConfigError(f'tensor "{name}" is {name_of(dtype)}; a bucket holds one of {known}')
    return tuple(shape), dtype
