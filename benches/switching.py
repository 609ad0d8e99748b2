"""Time from `set_model` to the first batch of the new model, with suppliers that make whole batches in long calls.

The trainer is in this process. It changes the model at a random moment of a call: that call must end, and the next one
makes the first fresh batch. So a switch should take at most two calls and a little more.
"""

from __future__ import annotations

import random
import statistics
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from benches import workloads
from benches.fleet import Fleet, FleetError
from benches.role import batch_config
from benches.scenarios import SMALL, Scenario, Side

NAME = "switching"
CALL_S = 0.03
MOMENT_MS = 1.0
BATCH = 32
N_SLOTS = 4 * BATCH
# Batches of each model that are taken before the next switch.
N_TAKEN = 2
PROCESSES = {"num_workers": 2, "multiprocessing_context": "spawn"}
# Name of a case: number of suppliers, and the options of the loader.
LOADERS: dict[str, tuple[int, dict[str, Any]]] = {
    "no workers, 1 supplier": (1, {}),
    "no workers, 1 supplier, zero copy": (1, {"zero_copy": True}),
    "2 workers, 1 supplier": (1, {"num_workers": 2}),
    "2 workers, 2 suppliers, ordered": (2, {"num_workers": 2, "ordered": True}),
    "2 worker processes, 1 supplier": (1, PROCESSES),
    "2 worker processes, 2 suppliers": (2, PROCESSES),
    "2 worker processes, 2 suppliers, zero copy": (2, {**PROCESSES, "zero_copy": True}),
    "2 worker processes, 2 suppliers, ordered": (2, {**PROCESSES, "ordered": True}),
}


def measure(baseline: str, quick: bool) -> dict[str, Any]:
    """Change the model again and again, with each kind of loader.

    Args:
        baseline: ignored; the other package has no suppliers that make batches.
        quick: few switches.

    Returns:
        `call_ms` (measured duration of a call of 30 ms), `limit_ms` (two of them and 1 ms), `n`, and `loaders`, by
        their names: p50_ms, p99_ms, max_ms, n_late (switches beyond the limit) and n_stale (batches of an earlier
        model); or `error`.
    """
    n = 10 if quick else 200
    call_ms = _call_ms()
    limit_ms = 2 * call_ms + MOMENT_MS
    try:
        loaders = {name: _summary(_switch(*how, n), limit_ms) for name, how in LOADERS.items()}
    except (FleetError, RuntimeError) as error:
        return {"error": str(error)}
    return {"call_ms": call_ms, "limit_ms": limit_ms, "n": n, "loaders": loaders}


def _call_ms() -> float:
    took_ms = []
    for _ in range(20):
        began = time.perf_counter()
        time.sleep(CALL_S)
        took_ms.append((time.perf_counter() - began) * 1e3)
    return statistics.median(took_ms)


def _summary(switches: tuple[list[float], int], limit_ms: float) -> dict[str, float]:
    took_ms, n_stale = sorted(switches[0]), switches[1]
    n = len(took_ms)
    return {
        "p50_ms": took_ms[n // 2],
        "p99_ms": took_ms[n * 99 // 100],
        "max_ms": took_ms[-1],
        "n_late": sum(one > limit_ms for one in took_ms),
        "n_stale": n_stale,
    }


def _switch(n_suppliers: int, options: dict[str, Any], n: int) -> tuple[list[float], int]:
    """Switch n times; return the milliseconds of each switch, and the number of batches of an earlier model."""
    import softs_fast

    scenario = Scenario(NAME, "loader", SMALL, N_SLOTS, n_suppliers, batch_size=BATCH, call_s=CALL_S)
    side = replace(Side.pure("softs_fast"), batch_generator=True)
    when = random.Random(1)
    took_ms, n_stale = [], 0
    with ExitStack() as stack:
        fleet = stack.enter_context(Fleet(scenario, side, with_clients=False))
        loader = softs_fast.SoftDataLoader(
            f"{workloads.PRODUCT}-0",
            fleet.frontend,
            batch_config(softs_fast, SMALL),
            softs_fast.ShmMedium,
            N_SLOTS,
            batch_size=BATCH,
            **options,
        )
        stack.callback(loader.soft_dataset.close)
        batches = iter(loader)
        for model in range(1, n + 1):
            for _ in range(N_TAKEN):
                next(batches)
            time.sleep(when.random() * CALL_S)
            began = time.perf_counter()
            loader.set_model(f"{workloads.PRODUCT}-{model}")
            while int(next(batches)["y"][0]) != model:
                n_stale += 1
            took_ms.append((time.perf_counter() - began) * 1e3)
        del batches
    return took_ms, n_stale
