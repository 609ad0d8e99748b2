"""Cost of a sample beside growing numbers of suppliers and clients, and the memory of each process."""

from __future__ import annotations

from typing import Any

from benches import proc
from benches.fleet import Fleet, FleetError
from benches.scenarios import IMAGE, SMALL, Scenario, Side

NAME = "growth"
N_SUPPLIERS = (1, 2, 4, 8, 16, 32, 64)
N_CLIENTS = (1, 2, 4, 8, 16, 32)
N_SLOTS = 16
WARM_UP_S = 0.1


def measure(baseline: str, quick: bool) -> dict[str, Any]:
    """Measure softs_fast under growing fleets, and the memory of both packages.

    Args:
        baseline: module to measure the memory of, too.
        quick: only the smallest and the largest fleets, and short runs.

    Returns:
        `suppliers` and `clients` (by their number: samples_per_s, us and cpu_us per sample, p50_us and p99_us of one
        request), and `memory` (by package and role: mb resident beyond the slots, imported_mb of it after the
        import); or `error`.
    """
    seconds = 0.3 if quick else 1.5
    try:
        return {
            "suppliers": [_row(n, Scenario(NAME, "one_by_one", SMALL, N_SLOTS, n), seconds)
                          for n in (N_SUPPLIERS[::6] if quick else N_SUPPLIERS)],
            "clients": [_row(n, Scenario(NAME, "one_by_one", SMALL, N_SLOTS, 1, n), seconds)
                        for n in (N_CLIENTS[::5] if quick else N_CLIENTS)],
            "memory": {package: _memory(package, seconds) for package in dict.fromkeys((baseline, "softs_fast"))},
        }  # fmt: skip
    except FleetError as error:
        return {"error": str(error)}


def _row(n: int, scenario: Scenario, seconds: float) -> dict[str, Any]:
    with Fleet(scenario, Side.pure("softs_fast"), WARM_UP_S) as fleet:
        outcome = fleet.measure(seconds)
    return {
        "n": n,
        "samples_per_s": outcome["samples_per_s"],
        "us": 1e6 / outcome["samples_per_s"],
        "cpu_us": 1e6 * outcome["cpu_s"] / outcome["samples"],
        "p50_us": outcome["p50_us"],
        "p99_us": outcome["p99_us"],
    }


def _memory(package: str, seconds: float) -> dict[str, dict[str, float]]:
    found = {}
    with Fleet(Scenario(NAME, "one_by_one", IMAGE, N_SLOTS), Side.pure(package), WARM_UP_S) as fleet:
        fleet.measure(seconds)
        for process in fleet.processes:
            resident = proc.resident(process.pid)
            # The parts of a segment besides its slots count as well.
            beyond = resident.own + max(0, resident.segments - N_SLOTS * IMAGE.nbytes)
            found[process.role] = {"mb": beyond / 1e6, "imported_mb": process.imported_bytes / 1e6}
    return found
