"""The tensor of this process behind any tensor of torch, and what native code may do with its memory.

Every room that reads or writes the memory of tensors asks here first, because torch has many tensors without memory of
their own: `data_ptr` of a `DTensor`, of a fake tensor and of most subclasses is 0, or an offset from 0.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, TypeGuard

from ..errors import ConfigError
from .dtypes import import_torch, is_tensor

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.distributed.tensor import DTensor

__all__ = ["as_plain", "is_distributed", "is_plain", "local_tensor", "mark_written", "shard_of"]


def local_tensor(
    name: str,
    tensor: Tensor,
    *,
    kind: str = "tensor",
    dtypes: Collection[torch.dtype] | None = None,
    written: bool = True,
) -> Tensor:
    """Return the strided tensor of this process behind a tensor, on the same memory.

    A plain tensor or parameter is returned as it is, on any device, with any strides, of any length: ask `is_plain`
    before native code uses its address. A `DTensor` gives its local shard; `shard_of` says which one that is.

    Args:
        name: Name of the tensor, for errors.
        tensor: Any tensor of torch.
        kind: Noun in front of the name in errors, such as "parameter".
        dtypes: Dtypes that the caller can take; None for all.
        written: Whether the caller writes into the tensor; then its elements must lie apart in memory.

    Raises:
        ConfigError: The tensor has no memory in this process, is not strided, or is of another dtype; the text has its
            name, what it is, and the remedy.
    """
    torch = import_torch()
    what, remedy = "", ""
    is_usual = type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter
    if not is_usual and not is_tensor(tensor):
        what, remedy = f"of type {type(tensor).__name__}", "pass a tensor"
    elif not is_usual and is_distributed(tensor):
        if not any(placement.is_partial() for placement in tensor.placements):
            return local_tensor(name, _shard(tensor), kind=kind, dtypes=dtypes, written=written)
        what, remedy = "a DTensor of partial sums", "call redistribute() first"
    elif not is_usual and torch.nn.parameter.is_lazy(tensor):
        what, remedy = "not initialized", "run one forward pass first"
    elif tensor.is_nested:
        what, remedy = "a nested tensor", "pass its values() and offsets()"
    elif not is_usual and _has_own_operations(tensor):
        what = f"a {type(tensor).__name__}, a subclass of Tensor without memory of its own"
        remedy = "pass the tensors inside it"
    elif tensor.is_meta:
        what, remedy = "on the meta device, without memory", "call to_empty() and load its values first"
    elif tensor.layout is not torch.strided:
        what, remedy = f"of layout {str(tensor.layout).removeprefix('torch.')}", "call to_dense() first"
    elif tensor.is_quantized:
        what, remedy = f"quantized ({_dtype_of(tensor)})", "pass its int_repr(), or dequantize() it"
    elif dtypes is not None and tensor.dtype not in dtypes:
        what, remedy = _dtype_of(tensor), f"convert it to one of {', '.join(map(str, dtypes))}"
        remedy = remedy.replace("torch.", "")
    elif written and not tensor.is_contiguous() and _overlaps(tensor):
        what = f"{list(tensor.shape)} with strides {list(tensor.stride())}, so that elements share memory"
        remedy = "call contiguous() first"
    elif tensor.numel() and not tensor.untyped_storage().data_ptr():
        what, remedy = "without memory: its storage has been freed", "use it where it has its values"
    else:
        return tensor
    raise ConfigError(f'{kind} "{name}" is {what}; expected a dense tensor with memory: {remedy}')


def is_distributed(tensor: object) -> TypeGuard[DTensor]:
    """Return whether a tensor is a DTensor. None exists before torch has imported their module."""
    return isinstance(tensor, getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ()))


def is_plain(tensor: Tensor) -> bool:
    """Return whether the bytes from the address of a local tensor on are its elements in order, in host memory."""
    return tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def as_plain(tensor: Tensor) -> Tensor:
    """Return a local tensor itself if it is plain (`is_plain`), or a copy that is."""
    if is_plain(tensor):
        return tensor
    return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()


def shard_of(tensor: Tensor) -> str:
    """Return in words which part of the whole tensor this process has, the same words for equal parts; "" for all.

    Example:
        >>> shard_of(torch.zeros(2))
        ''
    """
    if not is_distributed(tensor):
        return ""
    mesh = tensor.device_mesh
    place = mesh.get_coordinate()
    parts = [
        f"{placement} {'outside' if place is None else place[number]}/{mesh.size(number)}"
        for number, placement in enumerate(tensor.placements)
        if not placement.is_replicate() and mesh.size(number) > 1
    ]
    return f"shard {', '.join(parts)}" if parts else ""


def mark_written(tensors: Iterable[Tensor]) -> None:
    """Move the version counters of tensors in the memory of which native code has written; nothing is copied.

    Autograd then raises where a graph made before needs their old values, as after an operation of torch. Views, and
    what `detach` returns, share the counter of their base; `Tensor.data` does not.

    Args:
        tensors: The tensors of the model, not copies of `Tensor.data`; a `DTensor` with its shard.
    """
    written = [tensor for tensor in tensors if not tensor.is_inference()]
    # Most processes have none.
    if "torch.distributed.tensor" in sys.modules:
        written += [_shard(tensor) for tensor in written if is_distributed(tensor)]
    import_torch().autograd.graph.increment_version(written)


def _shard(tensor: DTensor) -> Tensor:
    with import_torch().no_grad():
        shard: Tensor = tensor.to_local()
    return shard


def _has_own_operations(tensor: Tensor) -> bool:
    """Return whether a subclass implements the operations of torch itself, as wrappers of other tensors do."""
    return type(tensor).__torch_dispatch__ is not import_torch().Tensor.__torch_dispatch__


def _overlaps(tensor: Tensor) -> bool:
    """Return whether elements may share memory: a step along a dimension does not leave what smaller steps reach."""
    end = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= end:
                return True
            end += stride * (size - 1)
    return False


def _dtype_of(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
