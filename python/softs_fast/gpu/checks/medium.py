"""Samples of teachers in other processes, on this one's device: whole, in order, also when a teacher is killed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from softs_fast.errors import PeerLost
from softs_fast.loader import SoftDataLoader
from softs_fast.tensors import cuda

from . import samples
from .expect import expect
from .maker import KINDS
from .market import Market, Product, market

__all__ = ["check", "check_deaths", "take"]

_BATCH_SIZE = 4
_N_BATCHES = 8
#: Batches around the death of a teacher.
_N_BEFORE, _N_AFTER = 3, 6
#: Errors of one teacher's death at most: each names a sample that is made again, and four batches are under way.
_N_LOST = 4 * _BATCH_SIZE


def check(quick: bool) -> dict[str, Any]:
    """Check each way to make samples, packed and as views, and casts on the way.

    Raises:
        CheckFailed: a bit of a batch is wrong, or it is not on the device.
    """
    plain = [Product("every", kind) for kind in KINDS]
    placed = [Product("every", "batch", where) for where in ("host", "array", "mixed")]
    wide = [Product("unaligned", kind, wide=True) for kind in ("sample", "batch")]
    with market([*plain, *placed, *wide]) as running:
        for product in plain:
            take(running, product, _N_BATCHES, zero_copy=True)
        for product in [*plain, *placed, *wide]:
            take(running, product, _N_BATCHES)
    return {"note": f"{len(plain + placed + wide)} ways to make samples, packed and as views"}


def check_deaths(quick: bool) -> dict[str, Any]:
    """Check that a stream stays whole when a teacher is killed while it works, packed and as views.

    Raises:
        CheckFailed: a sample is missing, comes twice or has wrong bits.
        SampleTimeout: the other teachers do not go on.
    """
    product = Product("large", "batch")
    n_lost = 0
    # One market for both: once this process has used its device, no other process can be forked from it.
    with market([product], [product], [product]) as running:
        for victim, zero_copy in enumerate((False, True)):
            with _loader(running, product, zero_copy=zero_copy) as loader:
                _take(loader, product, 0, _N_BEFORE)
                running.kill_teacher(victim)
                n_lost += _take(loader, product, _N_BEFORE, _N_AFTER)
    return {"note": f"{n_lost} samples were lost with a teacher, named, and made again", "lost": n_lost}


def take(running: Market, product: Product, n: int, **arguments: Any) -> None:
    """Take and check the first `n` batches.

    Raises:
        CheckFailed: a bit of a batch is wrong, or it is not on the device.
    """
    with _loader(running, product, **arguments) as loader:
        lost = _take(loader, product, 0, n)
        expect(lost == 0, f"{lost} samples were lost, although no teacher has ended")


def _loader(running: Market, product: Product, **arguments: Any) -> Any:
    return running.loader(product, num_slots=4 * _BATCH_SIZE, batch_size=_BATCH_SIZE, **arguments)


def _take(loader: SoftDataLoader, product: Product, first: int, n: int) -> int:
    """Take and check `n` batches; return how many samples were lost with a teacher before they were made again."""
    config = samples.CONFIGS[product.config]
    lost = 0
    batches: Iterator[dict[str, Any]] = iter(loader)
    for number in range(first, first + n):
        while True:
            try:
                batch = next(batches)
                break
            except PeerLost:
                lost += 1
                expect(lost <= _N_LOST, f"{lost} samples were lost with one teacher")
        samples.check(config, batch, list(range(number * _BATCH_SIZE, (number + 1) * _BATCH_SIZE)))
        where = {cuda.device_of(tensor) for tensor in batch.values() if tensor.numel()}
        expect(where == {0}, f"batch {number} of {product.name} is on devices {where}; need 0")
        del batch
    return lost
