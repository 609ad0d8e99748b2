"""Reductions over several buffers in one pass on the CPU, and facts about the native build.

The collectives use the same code on shared memory; here it takes torch tensors and numpy arrays. The results are
the same bits on every machine; docs/numerics.md defines them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _kernels
from .errors import ConfigError
from .tensors import is_tensor, mark_written

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    Buffer = Tensor | np.ndarray[Any, Any]

__all__ = ["BuildInfo", "build_info", "copy", "reduce"]

#: From this size on, stores past the caches make up for what a call costs (measured: 1 MiB in 0.75 of torch's time, 4 MiB in 0.65).
_STREAMED_BYTES = 1 << 20


@dataclass(frozen=True)
class BuildInfo:
    """Contents of the native module, and which instruction sets this machine runs.

    Attributes:
        compiler: name and version of the C++ compiler.
        compiled: instruction sets in this build, best first.
        available: those that this machine runs, best first; `scalar` is always the last.
        chosen: the one that is used unless another is asked for.
        cuda: version of the CUDA runtime in the build, such as `13.0`; None in a build without CUDA.
        cuda_architectures: targets of its kernels: `90-real` is machine code alone, `120` is machine code and PTX.
    """

    compiler: str
    compiled: tuple[str, ...]
    available: tuple[str, ...]
    chosen: str
    cuda: str | None
    cuda_architectures: tuple[str, ...]


def build_info() -> BuildInfo:
    """Return the contents of this build, and the instruction set that was chosen.

    Example:
        >>> build_info().available[-1]
        'scalar'
    """
    info = _kernels.build_info()
    version, architectures = _kernels.cuda_build() or (None, "")
    return BuildInfo(
        compiler=info["compiler"],
        compiled=tuple(info["compiled"]),
        available=tuple(info["available"]),
        chosen=info["chosen"],
        cuda=None if version is None else f"{version // 1000}.{version % 1000 // 10}",
        cuda_architectures=tuple(architectures.split()),
    )


def reduce(
    inputs: Sequence[Buffer],
    out: Buffer | Sequence[Buffer],
    op: str = "sum",
    *,
    scale: float = 1.0,
    stream_stores: bool = False,
    instruction_set: str | None = None,
) -> None:
    """Reduce buffers element by element, multiply by `scale`, cast, and store, in one pass and without the GIL.

    Inputs are added in their order, in float32 for 16-bit dtypes. Integers wrap around. For bool, `min` is a logical
    and, `max` and `sum` are a logical or. The result has the same bits with every instruction set.

    Args:
        inputs: one or more buffers of one shape and dtype: float64, float32, float16, bfloat16, int64, int32, int16,
            int8, uint8 or bool; contiguous, in host memory, aligned or not.
        out: one buffer for the result, or several, each of which gets it. The same shape; floats for floats, integers
            or floats for integers, bool for bool. May be one of the inputs if its items have the same size.
        op: `sum`, `mean`, `min` or `max`.
        scale: factor of the result; a mean is divided as well.
        stream_stores: use non-temporal stores, which are faster for results that exceed the caches and are not read
            soon.
        instruction_set: one of `build_info().available` instead of the best.

    Raises:
        ConfigError: another shape, dtype, layout or device than described above, buffers that overlap, an unknown
            operation or an instruction set that is not available here.

    Example:
        >>> import numpy as np
        >>> total = np.empty(3, np.float32)
        >>> reduce([np.ones(3, np.float32), np.ones(3, np.float32)], total, "mean", scale=3.0)
        >>> total.tolist()
        [3.0, 3.0, 3.0]

    Source: own, see csrc/cpu/reduce.hpp.
    """
    sources = [_Memory.of(f"input {i}", buffer) for i, buffer in enumerate(inputs)]
    outs = out if isinstance(out, Sequence) else [out]
    targets = [_Memory.of(f"output {i}", buffer) for i, buffer in enumerate(outs)]
    if not sources or not targets:
        raise ConfigError(f"{len(sources)} inputs, {len(targets)} outputs; need at least one of each")
    for memory in sources[1:]:
        memory.check_like(sources[0], dtype=True)
    targets[0].check_like(sources[0], dtype=False)
    for memory in targets[1:]:
        memory.check_like(targets[0], dtype=True)
    _check_overlap(sources, targets)
    try:
        _kernels.reduce(
            [memory.address for memory in sources],
            [memory.writable_address() for memory in targets],
            sources[0].count,
            in_dtype=sources[0].dtype,
            out_dtype=targets[0].dtype,
            op=op,
            scale=scale,
            stream_stores=stream_stores,
            instruction_set=instruction_set,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error
    tensors = [buffer for buffer in outs if is_tensor(buffer)]
    if tensors:
        mark_written(tensors)


def copy(source: Buffer, out: Any) -> None:
    """Copy a tensor or an array into another one; past the caches if both are large plain memory of the host.

    What is overwritten is then not read first, which takes half of the time.

    Args:
        source: Tensor or array.
        out: One of the same kind, shape and dtype; not the same memory.
    """
    is_large = out.nbytes >= _STREAMED_BYTES and out.shape == source.shape and out.dtype == source.dtype
    if is_large and _is_plain(source) and _is_plain(out) and (is_tensor(out) or out.flags.writeable):
        # The sum of one input has its bits.
        _kernels.reduce(
            [_address(source)],
            [_address(out)],
            out.nbytes,
            in_dtype="uint8",
            out_dtype="uint8",
            op="sum",
            scale=1.0,
            stream_stores=True,
            instruction_set=None,
        )
        if is_tensor(out):
            mark_written([out])
    elif is_tensor(out) and is_tensor(source):
        out.copy_(source)
    else:
        out[...] = source


def _is_plain(buffer: Buffer) -> bool:
    """Return whether the bytes of a buffer lie in host memory in the order of its elements."""
    if not is_tensor(buffer):
        return bool(buffer.flags.c_contiguous) and not buffer.dtype.hasobject
    # One of a subclass may be made of others.
    torch = sys.modules["torch"]
    is_dense = type(buffer) in (torch.Tensor, torch.nn.Parameter) and buffer.layout == torch.strided
    return is_dense and buffer.is_cpu and buffer.is_contiguous() and not (buffer.is_neg() or buffer.is_conj())


def _address(buffer: Buffer) -> int:
    return buffer.data_ptr() if is_tensor(buffer) else buffer.ctypes.data


@dataclass(frozen=True)
class _Memory:
    """Address, shape and dtype of a tensor or an array."""

    name: str
    address: int
    dtype: str
    shape: tuple[int, ...]
    count: int
    item_bytes: int
    writable: bool

    @classmethod
    def of(cls, name: str, buffer: Buffer) -> _Memory:
        if is_tensor(buffer):
            if not buffer.is_cpu:
                raise ConfigError(f"{name} is on {buffer.device}; need host memory")
            if str(buffer.layout) != "torch.strided":
                raise ConfigError(f"{name} is {buffer.layout}; need a dense tensor, see .to_dense()")
            contiguous, native = buffer.is_contiguous(), not buffer.is_neg()
            dtype, item_bytes, writable = str(buffer.dtype).removeprefix("torch."), buffer.itemsize, True
        elif isinstance(buffer, getattr(sys.modules.get("numpy"), "ndarray", ())):
            contiguous, native = buffer.flags.c_contiguous, buffer.dtype.isnative
            dtype, item_bytes, writable = buffer.dtype.name, buffer.dtype.itemsize, buffer.flags.writeable
        else:
            raise ConfigError(f"{name} is of type {type(buffer).__name__}; need a tensor or an array")
        if not contiguous:
            raise ConfigError(
                f"{name} is not contiguous; need one, see .contiguous() and ascontiguousarray()"
            )
        if not native:
            raise ConfigError(f"{name} has its sign or its bytes turned around; need a plain copy of it")
        shape = tuple(buffer.shape)
        count = buffer.numel() if is_tensor(buffer) else buffer.size
        return cls(name, _address(buffer), dtype, shape, count, item_bytes, writable)

    def check_like(self, other: _Memory, *, dtype: bool) -> None:
        """Raise ConfigError unless the shape, and on request the dtype, is that of another buffer."""
        if self.shape != other.shape:
            raise ConfigError(f"{self.name} has shape {self.shape}; need {other.shape} as {other.name}")
        if dtype and self.dtype != other.dtype:
            raise ConfigError(f"{self.name} is {self.dtype}; need {other.dtype} as {other.name}")

    def writable_address(self) -> int:
        if not self.writable:
            raise ConfigError(f"{self.name} is read-only; need memory that can be written")
        return self.address

    @property
    def end(self) -> int:
        return self.address + self.count * self.item_bytes


def _check_overlap(sources: list[_Memory], targets: list[_Memory]) -> None:
    """Raise ConfigError for outputs that share memory with each other, or partly with an input."""
    for i, target in enumerate(targets):
        for other in (*sources, *targets[:i]):
            apart = target.end <= other.address or other.end <= target.address
            itself = (target.address, target.end) == (other.address, other.end) and other in sources
            if not apart and not itself:
                raise ConfigError(
                    f"{target.name} overlaps {other.name}; need memory of its own, or exactly an input"
                )
