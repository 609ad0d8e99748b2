"""Copies of batches to a device are whole, although the batch was dropped before the copy began."""

from __future__ import annotations

from typing import Any

import torch

from softs_fast.market import ShmMedium

from . import samples
from .market import Product, market

__all__ = ["check"]

_BATCH_SIZE = 4
_N_BATCHES = 6
#: How long the stream is held before each copy: some 20 ms.
_CYCLES = 40_000_000
#: With slots for two batches a teacher writes to a slot as soon as the batch before is dropped.
_LOADERS: tuple[dict[str, Any], ...] = (
    {"pin_memory": True},
    {"pin_memory": True, "zero_copy": True},
    {"zero_copy": True},
    {"device": "cuda"},
    {"device": "cuda", "zero_copy": True},
)


def check(quick: bool) -> dict[str, Any]:
    """Copy batches of 1 MiB samples in a stream that is late, and drop them at once.

    Raises:
        CheckFailed: a bit of a copy is wrong.
    """
    product = Product("large", "batch", "host")
    config = samples.CONFIGS[product.config]
    with market([product], medium=ShmMedium) as running:
        for options in _LOADERS:
            copies = []
            with running.loader(
                product, num_slots=2 * _BATCH_SIZE, batch_size=_BATCH_SIZE, **options
            ) as loader:
                batches = iter(loader)
                for _ in range(_N_BATCHES):
                    torch.cuda._sleep(_CYCLES)  # type: ignore[no-untyped-call]
                    batch = next(batches)
                    copies.append({name: one.to("cuda", non_blocking=True) for name, one in batch.items()})
                    del batch
            torch.cuda.synchronize()
            for number, copy in enumerate(copies):
                numbers = range(number * _BATCH_SIZE, (number + 1) * _BATCH_SIZE)
                samples.check(config, copy, list(numbers))
    return {"note": f"{len(_LOADERS)} kinds of loaders, {_N_BATCHES} batches each, in a late stream"}
