"""What torch allocates while a block runs, counted by the operators, which is the same on each machine and in each run."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Allocations"]


class Allocations(TorchDispatchMode):
    """Counts the bytes of the storages that operators create, and of those the ones that still live.

    Attributes:
        peak: most bytes that lived at one time, of all dtypes.
        float32_peak: the same of those created as float32.
        live: bytes that live now.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = self.float32_peak = self.live = 0
        self._float32 = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        for tensor in _tensors((args, kwargs)):
            self._note(tensor, is_new=False)
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            self._note(tensor, is_new=True)
        return result

    def _note(self, tensor: torch.Tensor, *, is_new: bool) -> None:
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._known:
            return
        self._known.add(key)
        n_bytes = storage.nbytes() if is_new else 0
        float32 = n_bytes if tensor.dtype == torch.float32 else 0
        weakref.finalize(storage, self._drop, key, n_bytes, float32)
        self.live += n_bytes
        self._float32 += float32
        self.peak, self.float32_peak = max(self.peak, self.live), max(self.float32_peak, self._float32)

    def _drop(self, key: int, n_bytes: int, float32: int) -> None:
        self._known.discard(key)
        self.live -= n_bytes
        self._float32 -= float32


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, list | tuple):
        for item in tree:
            yield from _tensors(item)
    elif isinstance(tree, dict):
        yield from _tensors(list(tree.values()))
