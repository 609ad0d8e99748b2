"""Tensors as rows of elements for the steps of a collective."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from softs_fast.collectives.cuda.pieces import Pieces, pieces_of
from softs_fast.collectives.tensors import describe, name_of
from softs_fast.errors import ConfigError
from softs_fast.tensors import cuda


@contextmanager
def lent(
    sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor], device: int
) -> Iterator[tuple[Pieces, Pieces]]:
    """Yield local tensors as rows of elements; those that are not contiguous are copied on the device, and copied back.

    Nothing is copied back if the block raises.
    """
    plain = {id(tensor): _plain(tensor, device) for tensor in (*sources, *targets)}
    yield (
        pieces_of([plain[id(tensor)] for tensor in sources]),
        pieces_of([plain[id(tensor)] for tensor in targets]),
    )
    with torch.no_grad():
        for tensor in targets:
            copy = plain[id(tensor)]
            if copy is not tensor:
                tensor.copy_(copy)


def check_device(name: str, tensor: torch.Tensor, device: int) -> None:
    """Raise ConfigError if a local tensor is not on a device."""
    if tensor.numel() and (found := cuda.device_of(tensor)) != device:
        where = "in the host's memory" if found is None else f"on CUDA device {found}"
        raise ConfigError(
            f'tensor "{name}", {describe(tensor)}, is {where}; need CUDA device {device}, or ShmStrategy for the host\'s '
            "memory"
        )


def _plain(tensor: torch.Tensor, device: int) -> torch.Tensor:
    if tensor.is_contiguous() and not tensor.is_neg():
        return tensor
    copy = cuda.empty(tensor.shape, name_of(tensor.dtype), device)
    return copy.copy_(tensor.detach())
