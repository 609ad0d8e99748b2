"""Bytes of CPU tensors without numpy, and the flat vectors of a module."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...errors import ConfigError
from .manifest import Entry, Manifest
from .memory import Memory

__all__ = [
    "Contents",
    "buffers_of",
    "copy_pieces",
    "first_not_finite",
    "flattened",
    "from_bytes",
    "is_finite",
    "load_buffers",
    "load_into",
    "of_module",
    "to_bytes",
]

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("frames are little-endian, and so must the machine be")


@dataclass
class Contents:
    """What a frame holds, decoded.

    Attributes:
        parameters: [n_parameters], in the manifest's order; float32, or bfloat16 as a frame had it.
        floats: float32 [n_floats], the floating buffers; None if the frame has no buffers.
        integers: int64 [n_integers], the others; None with `floats`.
    """

    parameters: Tensor
    floats: Tensor | None = None
    integers: Tensor | None = None


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
        module: of the manifest.
        manifest: says the order.
        memory: for the parameters; None for new one.
    """
    parameters = dict(module.named_parameters())
    flat = flattened([parameters[one.name] for one in manifest.parameters], torch.float32, memory)
    return Contents(flat, *buffers_of(module, manifest))


def buffers_of(module: nn.Module, manifest: Manifest) -> tuple[Tensor, Tensor]:
    """Return copies of a module's floating buffers, float32 [n_floats], and of the others, int64 [n_integers]."""
    buffers = dict(module.named_buffers())
    return (
        flattened([buffers[one.name] for one in manifest.float_buffers], torch.float32),
        flattened([buffers[one.name] for one in manifest.integer_buffers], torch.int64),
    )


def load_into(module: nn.Module, manifest: Manifest, contents: Contents) -> None:
    """Write parameters, and buffers if there are any, into a module, each tensor in place.

    Raises:
        ConfigError: the contents have other lengths than the manifest.
    """
    _load(dict(module.named_parameters()), manifest.parameters, contents.parameters)
    if contents.floats is not None and contents.integers is not None:
        load_buffers(module, manifest, contents.floats, contents.integers)


def load_buffers(module: nn.Module, manifest: Manifest, floats: Tensor, integers: Tensor) -> None:
    """Write buffers into a module, each tensor in place.

    Raises:
        ConfigError: they have other lengths than the manifest.
    """
    buffers = dict(module.named_buffers())
    _load(buffers, manifest.float_buffers, floats)
    _load(buffers, manifest.integer_buffers, integers)


@torch.no_grad()
def _load(tensors: Mapping[str, Tensor], entries: Sequence[Entry], flat: Tensor) -> None:
    need = sum(one.n for one in entries)
    if flat.numel() != need:
        raise ConfigError(f"weights of {flat.numel()} elements do not fit the manifest; need {need}")
    for one, piece in zip(entries, torch.split(flat, [one.n for one in entries]), strict=True):
        target = tensors[one.name]
        # Devices have not every dtype: what goes to one is converted before.
        target.copy_((piece if target.is_cpu else piece.to(target.dtype)).view(one.shape))


def flattened(tensors: Sequence[Tensor], dtype: torch.dtype, memory: Memory | None = None) -> Tensor:
    """Return a new flat tensor on the CPU with all elements, one tensor after the other."""
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


def first_not_finite(contents: Contents, manifest: Manifest) -> str | None:
    """Return the name of the first tensor with a NaN or an infinity; None if all are finite."""
    for flat, at in (
        (contents.parameters, manifest.parameter_at),
        (contents.floats, manifest.float_buffer_at),
    ):
        if flat is None or is_finite(flat):
            continue
        bad = (~torch.isfinite(flat)).nonzero()
        return at(int(bad[0])).name
    return None


def is_finite(flat: Tensor) -> bool:
    """Return whether a vector has neither a NaN nor an infinity.

    Args:
        flat: floating [n], on the CPU.
    """
    # A dot product with itself is ten times as fast as a test of each element; it may overflow for finite ones.
    return bool(torch.isfinite(flat @ flat)) or bool(torch.isfinite(flat).all())
