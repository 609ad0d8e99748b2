"""A batch that is kept until its step is committed, and handed out again as it was."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import torch

__all__ = ["Retained"]


class Retained:
    """A batch of which views are handed out, so that what a program does to these, other than to write into them, is not
    seen in the next ones: `.grad`, `requires_grad_()`, another value in a dict.

    Args:
        batch: Tensors, in mappings, tuples and lists; as it was made.
    """

    def __init__(self, batch: Any) -> None:
        self._batch, self._versions = batch, _versions(batch)

    def is_changed(self) -> bool:
        """Return whether it may have been written into since; writes through numpy or `.data` are not seen."""
        return self._versions is None or _versions(self._batch) != self._versions

    def views(self) -> Any:
        """Return the batch with other tensors, which have its memory."""
        return _detached(self._batch)


def _versions(batch: Any) -> list[int] | None:
    """Return numbers that change with each write; None if there is a tensor that counts none."""
    tensors = list(_tensors(batch))
    return None if any(one.is_inference() for one in tensors) else [one._version for one in tensors]


def _tensors(batch: Any) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        yield from _tensors(list(batch.values()))
    elif isinstance(batch, list | tuple):
        for one in batch:
            yield from _tensors(one)


def _detached(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.detach()
    if isinstance(batch, MutableMapping):
        other = copy.copy(batch)
        other.update({name: _detached(one) for name, one in batch.items()})
        return other
    if isinstance(batch, list | tuple):
        found = [_detached(one) for one in batch]
        return batch._make(found) if hasattr(batch, "_make") else type(batch)(found)
    return batch
