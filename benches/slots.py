"""Samples per second by the number of slots: a user cannot guess a good one, so it should not matter."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

from benches.fleet import Fleet, FleetError
from benches.scenarios import COPIES, IMAGE, Scenario, Side

NAME = "slots"
N_SLOTS = (64, 256, 1024)
WARM_UP_S = 0.5
COPIED = Side.pure("softs_fast")
ZERO_COPY = replace(COPIED, zero_copy=True)
TENSORS = replace(COPIED, batch_generator=True)
# Name of a case: its side, number of suppliers, and seconds that a call takes.
CASES: dict[str, tuple[Side, int, float]] = {
    "bytes": (COPIED, 1, 0.0),
    "bytes, zero copy": (ZERO_COPY, 1, 0.0),
    "tensors": (TENSORS, 1, 0.0),
    "tensors, zero copy": (replace(ZERO_COPY, batch_generator=True), 1, 0.0),
    "bytes, 8 suppliers": (COPIED, 8, 0.0),
    "tensors, 8 suppliers": (TENSORS, 8, 0.0),
    "bytes, calls of 1 ms, 8 suppliers": (COPIED, 8, 0.001),
    "tensors, calls of 10 ms": (TENSORS, 1, 0.01),
}


def measure(baseline: str, quick: bool) -> dict[str, Any]:
    """Take batches of 32 samples of 600 KB, with few slots and with many, in interleaved rounds.

    Args:
        baseline: ignored; the other package has no such options.
        quick: one short round.

    Returns:
        `n_slots`, `cases` (by name, samples/s by number of slots) and `bare_copies`, medians; or `error`.
    """
    n_rounds, seconds = (1, 0.3) if quick else (3, 1.0)
    rates: dict[tuple[str, int], list[float]] = {}
    copies: list[float] = []
    try:
        for _ in range(n_rounds):
            copies.append(_rate(Scenario(NAME, "loader", IMAGE, 32), Side.other(COPIES), seconds))
            for name, (side, n_suppliers, call_s) in CASES.items():
                for n_slots in N_SLOTS:
                    scenario = Scenario(NAME, "loader", IMAGE, n_slots, n_suppliers, call_s=call_s)
                    rates.setdefault((name, n_slots), []).append(_rate(scenario, side, seconds))
    except FleetError as error:
        return {"error": str(error)}
    cases = {name: {str(n): statistics.median(rates[name, n]) for n in N_SLOTS} for name in CASES}
    return {"n_slots": N_SLOTS, "cases": cases, "bare_copies": statistics.median(copies)}


def _rate(scenario: Scenario, side: Side, seconds: float) -> float:
    with Fleet(scenario, side, WARM_UP_S) as fleet:
        return float(fleet.measure(seconds)["samples_per_s"])
