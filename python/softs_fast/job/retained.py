"""A batch that is kept until its step is committed, and handed out again as it was."""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping
from typing import Any

import torch

__all__ = ["Retained"]


class Retained:
    """What is kept of a batch that is handed out: other tensors, which have its memory. So what a program does to those that
    it has, other than to write into them, is not seen in the kept ones: `.grad`, `requires_grad_()`, another value in a dict.

    Args:
        batch: Tensors, in mappings, tuples and lists; as it was made.
    """

    def __init__(self, batch: Any) -> None:
        self._tensors: list[torch.Tensor] = []
        self._batch = _detached(batch, self._tensors)
        self._versions = self._counts()

    def is_changed(self) -> bool:
        """Return whether it may have been written into since; writes through numpy or `.data` are not seen."""
        return self._versions is None or self._counts() != self._versions

    def views(self) -> Any:
        """Return the batch with tensors of its own, as it was made."""
        return _detached(self._batch, [])

    def _counts(self) -> list[int] | None:
        """Return numbers that change with each write; None if there is a tensor that counts none."""
        try:
            return [one._version for one in self._tensors]
        except RuntimeError:  # of inference mode
            return None


def _detached(batch: Any, tensors: list[torch.Tensor]) -> Any:
    """Return a batch of other tensors with the same memory, which are added to a list."""
    if isinstance(batch, torch.Tensor):
        tensors.append(batch.detach())
        return tensors[-1]
    if isinstance(batch, Mapping):
        found = {name: _detached(one, tensors) for name, one in batch.items()}
        if type(batch) is dict:
            return found
        if not isinstance(batch, MutableMapping):
            return batch
        other = copy.copy(batch)
        other.update(found)
        return other
    if isinstance(batch, list | tuple):
        items = [_detached(one, tensors) for one in batch]
        return batch._make(items) if hasattr(batch, "_make") else type(batch)(items)
    return batch
