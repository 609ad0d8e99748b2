"""Whether a training step waits for the copy of its batch: `python -m benches.gpu.step_copy`.

One step reads a batch and ends with a number for the host, as a loss that is printed does. It runs on one batch that
stays on the device, which is the floor; on batches of a loader with `device=`; and on batches that the step copies
itself. The three take turns.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

import softs_fast as sf

BATCH_SIZE = 32
CONFIG = sf.BatchConfig([sf.TensorSpec("x", (150_000,), "float32")])
ROUNDS = 5
STEPS = 40
WARM_UP = 10

Batch = dict[str, torch.Tensor]


def make_supplier() -> sf.Supplier:
    """Return a supplier of samples of 600 KB that cost nothing to make."""
    rows = torch.rand(64, 150_000)
    return sf.Supplier(
        batch_generator_fn=lambda product_id, n: {"x": rows[:n]},
        product_ids=["p"],
        batch_config=CONFIG,
        max_batch=64,
    )


def measure(device: str = "cuda") -> dict[str, Any]:
    """Return milliseconds per step, medians of all rounds, and the share of a step that `device=` adds to the floor."""
    weights = torch.rand(150_000, 256, device=device)
    work = torch.rand(2048, 2048, device=device)

    def step(batch: Batch) -> float:
        made = batch["x"].to(device) @ weights
        for _ in range(8):
            made = made + (work @ work).mean()
        return float(made.sum())

    times: dict[str, list[float]] = {"resident": [], "device": [], "copied_by_step": []}
    with sf.Fleet(make_supplier, count=2) as fleet:
        options: dict[str, Any] = {"num_slots": 4 * BATCH_SIZE, "batch_size": BATCH_SIZE, "num_workers": 1}
        with (
            fleet.loader("p", CONFIG, device=device, **options) as moved,
            fleet.loader("p", CONFIG, pin_memory=device == "cuda", **options) as kept,
        ):
            sources: dict[str, Iterator[Batch]] = {"device": iter(moved), "copied_by_step": iter(kept)}
            resident = {"x": next(sources["device"])["x"].to(device)}
            for _ in range(ROUNDS):
                times["resident"] += _steps(lambda: resident, step)
                for name, batches in sources.items():
                    times[name] += _steps(lambda batches=batches: next(batches), step)  # type: ignore[misc]
    medians = {f"{name}_ms": statistics.median(some) * 1e3 for name, some in times.items()}
    added = (medians["device_ms"] - medians["resident_ms"]) / medians["resident_ms"]
    return {"bench": "step_copy", "batch_bytes": BATCH_SIZE * CONFIG.nbytes(), **medians, "added": added}


def _steps(take: Callable[[], Batch], step: Callable[[Batch], float]) -> list[float]:
    """Return the seconds of each step, the request for its batch included."""
    seconds = []
    for i in range(WARM_UP + STEPS):
        began = time.perf_counter()
        step(take())
        if i >= WARM_UP:
            seconds.append(time.perf_counter() - began)
    return seconds


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
