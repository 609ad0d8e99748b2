"""Bytes of CPU tensors without numpy, memory for them that is used again, and the flat vectors of a module."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from threading import Lock

import torch
from torch import Tensor, nn

from ...errors import ConfigError
from ...tensors import local_tensor
from .manifest import Entry, Manifest

__all__ = [
    "Contents",
    "Memory",
    "buffers_of",
    "copy_pieces",
    "first_not_finite",
    "flattened",
    "from_bytes",
    "is_finite",
    "load_buffers",
    "load_into",
    "of_module",
    "parameters_of",
    "to_bytes",
]

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("frames are little-endian, and so must the machine be")

#: Below this many bytes new memory costs nothing worth saving.
_LEAST_BYTES = 1 << 20


@dataclass
class Contents:
    """What a frame holds, decoded.

    Attributes:
        parameters: [n_parameters], in the manifest's order; float32, or bfloat16 as a frame had it.
        floats: float32 [n_floats], the floating buffers; None if the frame has no buffers.
        integers: int64 [n_integers], the others; None with `floats`.
        present: Whether each parameter of the manifest has a gradient; None if all have one. The elements of those
            without one are 0.
    """

    parameters: Tensor
    floats: Tensor | None = None
    integers: Tensor | None = None
    present: tuple[bool, ...] | None = None

    @property
    def n_bytes(self) -> int:
        """Bytes of its tensors."""
        return sum(one.nbytes for one in (self.parameters, self.floats, self.integers) if one is not None)


class Memory:
    """Buffers that are handed out again once nothing looks at them: taking new pages costs as much as filling them.

    Any thread may call it.

    Args:
        n_kept: buffers that are kept at most, in use or not.
    """

    def __init__(self, n_kept: int) -> None:
        self._n_kept = n_kept
        self._kept: list[bytearray] = []
        self._lock = Lock()

    def take(self, n: int) -> memoryview:
        """Return n bytes, which are not zeroed. They are the caller's as long as a view of them, or a tensor on one, is.

        Args:
            n: bytes, 0 or more.
        """
        if n < _LEAST_BYTES:
            return memoryview(bytearray(n))
        with self._lock:
            for i, one in enumerate(self._kept):
                # Not for much less than it has: a rest that nothing uses would stay in memory.
                if n <= len(one) <= 2 * n and _is_free(one):
                    # The last one used is looked at first: its bytes may still be in a cache.
                    self._kept.insert(0, self._kept.pop(i))
                    return memoryview(one)[:n]
            made = bytearray(n)
            self._kept.insert(0, made)
            del self._kept[self._n_kept :]
            return memoryview(made)


def _is_free(memory: bytearray) -> bool:
    """Nothing outside has the bytearray, only views of it; while there is one, its length cannot be changed."""
    try:
        memory.append(0)
    except BufferError:
        return False
    memory.pop()
    return True


def to_bytes(tensor: Tensor) -> bytearray:
    """Return a copy of a tensor's bytes.

    Args:
        tensor: any dtype and shape, on the CPU.
    """
    data = bytearray(tensor.numel() * tensor.element_size())
    if data:
        torch.frombuffer(data, dtype=tensor.dtype).copy_(tensor.reshape(-1))
    return data


def from_bytes(data: bytes | bytearray | memoryview, dtype: torch.dtype) -> Tensor:
    """Return a tensor [n] with these bytes; on their memory, if they may be written.

    Raises:
        ValueError: they are no multiple of an element.
    """
    if not len(data):
        return torch.empty(0, dtype=dtype, device="cpu")
    # torch warns of memory that is read-only.
    view = memoryview(data)
    return torch.frombuffer(bytearray(view) if view.readonly else view, dtype=dtype)


def of_module(module: nn.Module, manifest: Manifest, memory: Memory | None = None) -> Contents:
    """Return copies of a module's parameters and buffers as a frame of weights has them.

    Devices are left first and dtypes converted on the CPU: MPS has no float64 and not always bfloat16.

    Args:
        module: Module of the manifest.
        manifest: Manifest, which says the order.
        memory: Memory for the parameters; None: new memory.
    """
    flat = flattened(parameters_of(module, manifest), torch.float32, memory)
    return Contents(flat, *buffers_of(module, manifest))


def parameters_of(module: nn.Module, manifest: Manifest) -> list[nn.Parameter]:
    """Return the parameters that a module has now, in the manifest's order.

    Raises:
        ConfigError: One is missing, has another shape, or has no memory of its own.
    """
    parameters = dict(module.named_parameters())
    _found(parameters, manifest.parameters, "parameter")
    return [parameters[entry.name] for entry in manifest.parameters]


def buffers_of(module: nn.Module, manifest: Manifest) -> tuple[Tensor, Tensor]:
    """Return copies of a module's floating buffers, float32 [n_floats], and of the others, int64 [n_integers].

    Raises:
        ConfigError: One is missing, has another shape, or has no memory of its own.
    """
    buffers = dict(module.named_buffers())
    return (
        flattened(_found(buffers, manifest.float_buffers, "buffer"), torch.float32),
        flattened(_found(buffers, manifest.integer_buffers, "buffer"), torch.int64),
    )


def load_into(module: nn.Module, manifest: Manifest, contents: Contents) -> None:
    """Write parameters, and buffers if there are any, into a module, each tensor in place.

    Raises:
        ConfigError: The contents have other lengths than the manifest, or the module has no such tensors now.
    """
    _load(parameters_of(module, manifest), manifest.parameters, contents.parameters)
    if contents.floats is not None and contents.integers is not None:
        load_buffers(module, manifest, contents.floats, contents.integers)


def load_buffers(module: nn.Module, manifest: Manifest, floats: Tensor, integers: Tensor) -> None:
    """Write buffers into a module, each tensor in place.

    Raises:
        ConfigError: The buffers have other lengths than the manifest, or the module has no such tensors now.
    """
    buffers = dict(module.named_buffers())
    _load(_found(buffers, manifest.float_buffers, "buffer"), manifest.float_buffers, floats)
    _load(_found(buffers, manifest.integer_buffers, "buffer"), manifest.integer_buffers, integers)


def _found(tensors: Mapping[str, Tensor], entries: Sequence[Entry], kind: str) -> list[Tensor]:
    """Look tensors up by name at each use: a module may replace them at any time."""
    found = []
    for entry in entries:
        if entry.name not in tensors:
            raise ConfigError(
                f'{kind} "{entry.name}" is missing from the module, which had it at the start; replace no tensors of it'
            )
        one = local_tensor(entry.name, tensors[entry.name], kind=kind)
        if tuple(one.shape) != entry.shape:
            raise ConfigError(
                f'{kind} "{entry.name}" has the shape {list(one.shape)}, expected {list(entry.shape)} as at the start; '
                "replace no tensors of the module"
            )
        found.append(one)
    return found


@torch.no_grad()
def _load(tensors: Sequence[Tensor], entries: Sequence[Entry], flat: Tensor) -> None:
    need = sum(one.n for one in entries)
    if flat.numel() != need:
        raise ConfigError(f"weights of {flat.numel()} elements do not fit the manifest; need {need}")
    pieces = torch.split(flat, [one.n for one in entries])
    for target, one, piece in zip(tensors, entries, pieces, strict=True):
        # Devices have not every dtype: what goes to one is converted before.
        target.copy_((piece if target.is_cpu else piece.to(target.dtype)).view(one.shape))


def flattened(tensors: Sequence[Tensor], dtype: torch.dtype, memory: Memory | None = None) -> Tensor:
    """Return a flat tensor on the CPU with all elements, one tensor after the other."""
    n = sum(one.numel() for one in tensors)
    flat = (
        torch.empty(n, dtype=dtype, device="cpu")
        if memory is None
        else from_bytes(memory.take(n * dtype.itemsize), dtype)
    )
    begin = 0
    for one in tensors:
        flat[begin : begin + one.numel()].copy_(one.detach().cpu().reshape(-1))
        begin += one.numel()
    return flat


@torch.no_grad()
def copy_pieces(pieces: Sequence[Tensor], flat: Tensor) -> None:
    """Copy vectors, one after the other, into a vector that has as many elements as all of them."""
    for piece, room in zip(pieces, torch.split(flat, [one.numel() for one in pieces]), strict=True):
        room.copy_(piece)


def first_not_finite(contents: Contents, manifest: Manifest, held: Tensor | None = None) -> str | None:
    """Return the name of the first tensor with a NaN or an infinity; None if all are finite.

    Args:
        contents: What is looked at.
        manifest: Names of its tensors.
        held: Floating buffers that the server has; infinities that are the same there, such as those of a mask, are
            left alone.
    """
    if not is_finite(contents.parameters):
        return _first_of(manifest.parameters, ~torch.isfinite(contents.parameters))
    floats = contents.floats
    if floats is None or is_finite(floats):
        return None
    bad = ~torch.isfinite(floats)
    if held is not None:
        bad &= floats != held
    return _first_of(manifest.float_buffers, bad) if bool(bad.any()) else None


def _first_of(entries: Sequence[Entry], flags: Tensor) -> str:
    """Return the name of the tensor with the first element that has a flag, one or more of a flat vector."""
    ends = list(accumulate(one.n for one in entries))
    return entries[bisect_right(ends, int(flags.nonzero()[0]))].name


def is_finite(flat: Tensor) -> bool:
    """Return whether a vector has neither a NaN nor an infinity.

    Args:
        flat: floating [n], on the CPU.
    """
    # A dot product with itself is ten times as fast as a test of each element; it may overflow for finite ones.
    return bool(torch.isfinite(flat @ flat)) or bool(torch.isfinite(flat).all())
