"""Whether a training step waits for the copy of its batch.

One step reads a batch and ends with a number for the host, as a loss that is printed does. It runs on one batch that
stays on the device, which is the floor; on batches of a loader with `device=`; and on batches that the step copies
itself. The three take turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from softs_fast.configs import BatchConfig, TensorSpec
from softs_fast.fleet import Fleet
from softs_fast.market import Supplier

__all__ = ["measure"]

_BATCH_SIZE = 32
#: Of a sample: few enough that two teachers make batches faster than a step takes.
_N_ITEMS = 37_500
_CONFIG = BatchConfig([TensorSpec("x", (_N_ITEMS,), "float32")])
_ROUNDS = 5
_STEPS = 40
_WARM_UP = 10

Batch = dict[str, torch.Tensor]


def make_supplier() -> Supplier:
    """Return a supplier of samples of 150 KB that cost nothing to make."""
    rows = torch.rand(64, _N_ITEMS)
    return Supplier(
        batch_generator_fn=lambda product_id, n: {"x": rows[:n]},
        product_ids=["p"],
        batch_config=_CONFIG,
        max_batch=64,
    )


def measure(quick: bool, device: str = "cuda") -> dict[str, Any]:
    """Return milliseconds per step, medians of all rounds, and the share of a step that `device=` adds to the floor.

    Args:
        quick: Whether to measure fewer rounds.
        device: Device on which the steps run.
    """
    weights = torch.rand(_N_ITEMS, 256, device=device)
    work = torch.rand(2048, 2048, device=device)

    def step(batch: Batch) -> float:
        made = batch["x"].to(device) @ weights
        for _ in range(8):
            made = made + (work @ work).mean()
        return float(made.sum())

    times: dict[str, list[float]] = {"resident": [], "device": [], "copied_by_step": []}
    with Fleet(make_supplier, n_workers=2) as fleet:
        options: dict[str, Any] = {"num_slots": 4 * _BATCH_SIZE, "batch_size": _BATCH_SIZE, "num_workers": 1}
        with (
            fleet.loader("p", _CONFIG, device=device, **options) as moved,
            fleet.loader("p", _CONFIG, pin_memory=device == "cuda", **options) as kept,
        ):
            sources: dict[str, Iterator[Batch]] = {"device": iter(moved), "copied_by_step": iter(kept)}
            resident = {"x": next(sources["device"])["x"].to(device)}
            for _ in range(2 if quick else _ROUNDS):
                times["resident"] += _steps(lambda: resident, step)
                for name, batches in sources.items():
                    times[name] += _steps(lambda batches=batches: next(batches), step)  # type: ignore[misc]
    medians = {f"{name}_ms": statistics.median(some) * 1e3 for name, some in times.items()}
    added = (medians["device_ms"] - medians["resident_ms"]) / medians["resident_ms"]
    return {
        "note": f"batches of device= add {added:.1%} to a step of {medians['resident_ms']:.2f} ms",
        "batch_bytes": _BATCH_SIZE * _CONFIG.nbytes(),
        **medians,
        "added": added,
    }


def _steps(take: Callable[[], Batch], step: Callable[[Batch], float]) -> list[float]:
    """Return the seconds of each step, the request for its batch included."""
    seconds = []
    for i in range(_WARM_UP + _STEPS):
        began = time.perf_counter()
        step(take())
        if i >= _WARM_UP:
            seconds.append(time.perf_counter() - began)
    return seconds
