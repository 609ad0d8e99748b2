"""How a loader iterates over a dataset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["SINGLE_SAMPLES", "IterationPlan"]


# By identity: a collate_fn, such as an object of a dataclass, may have no hash.
@dataclass(frozen=True, eq=False)
class IterationPlan:
    """How a process iterates over a dataset.

    Attributes:
        batch_size: Samples per batch; None: single samples.
        make_batch: Function that makes an item of a list of samples, all of one version of the product; None: tensors
            are stacked natively, or single samples are handed out.
        n_threads: Native threads that gather batches ahead of the caller.
        n_ahead: Batches that they gather ahead.
        pins: Whether tensors are handed out in pinned memory.
        device: Device to which tensors are copied ahead of the caller; None: they stay on the host.
        keeps_reader: Whether later iterators continue with what the reader of this one has begun.
        n_held: Batches that the caller has at once; their memory is kept for later ones.
        record: Function called with product, position and batch before a batch is handed out; None: nothing is recorded.
    """

    batch_size: int | None = None
    make_batch: Callable[[list[Any]], Any] | None = None
    n_threads: int = 0
    n_ahead: int = 0
    pins: bool = False
    device: torch.device | None = None
    keeps_reader: bool = False
    n_held: int = 1
    record: Callable[[str, int, Any], None] | None = None


#: Of iterators over a dataset itself.
SINGLE_SAMPLES = IterationPlan()
