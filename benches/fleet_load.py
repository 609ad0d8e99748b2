"""How soon a fleet has the right number of workers: `python -m benches.fleet_load [ROUNDS]`.

A student takes what one worker makes, then what five do, then what one and a half do. Calls of the workers sleep, so
that the cores of this machine do not count.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import threading
import time

import torch

import softs_fast as sf

CALL_S = 0.02
BATCH_SIZE = 8
BOUNDS = (1, 8)
#: Needs in workers that are busy, and how long each lasts, seconds.
STEPS = ((0.6, 10.0), (5.0, 40.0), (1.5, 40.0))
CONFIG = sf.BatchConfig([sf.TensorSpec("x", (8,), "float32")])


def generate(product_id: str) -> dict[str, torch.Tensor]:
    """Make a sample as a slow teacher does."""
    time.sleep(CALL_S)
    return {"x": torch.ones(8)}


def make_supplier() -> sf.Supplier:
    """Return a slow teacher."""
    return sf.Supplier(generator_fn=generate, product_ids=["p"], batch_config=CONFIG)


class Student(threading.Thread):
    """Takes batches at the rate that is needed, or as fast as they come."""

    def __init__(self, loader: sf.SoftDataLoader) -> None:
        super().__init__(daemon=True)
        self.need, self.is_over = STEPS[0][0], False
        self._loader = loader

    def run(self) -> None:
        for _ in self._loader:
            if self.is_over:
                return
            time.sleep(BATCH_SIZE * CALL_S / self.need)


def measure() -> list[dict[str, float]]:
    """Return for each step the seconds to the last change, and the number of workers then."""
    found = []
    with (
        sf.Fleet(make_supplier, n_workers=BOUNDS) as fleet,
        fleet.loader("p", CONFIG, num_slots=4 * BATCH_SIZE, batch_size=BATCH_SIZE) as loader,
    ):
        student = Student(loader)
        student.start()
        for student.need, lasts_s in STEPS:
            began = changed = time.monotonic()
            n_workers = fleet.n_workers
            while (now := time.monotonic()) < began + lasts_s:
                if fleet.n_workers != n_workers:
                    n_workers, changed = fleet.n_workers, now
                time.sleep(0.05)
            is_right = math.ceil(0.9 * student.need) <= n_workers <= math.ceil(1.75 * student.need)
            found.append(
                {"need": student.need, "seconds": changed - began, "workers": n_workers, "right": is_right}
            )
        student.is_over = True
        student.join()
    return found


def main(n_rounds: int) -> None:
    """Print a line for each step: medians of the rounds."""
    rounds = [measure() for _ in range(n_rounds)]
    for steps in zip(*rounds, strict=True):
        print(json.dumps({key: statistics.median(step[key] for step in steps) for key in steps[0]}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
