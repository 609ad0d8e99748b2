"""The broker alone, with clients and suppliers that only speak the protocol.

They are the Rust example `broker_bench`, which starts our broker by itself. The other package's broker gets
the same load through its endpoints, in a process of its own.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any

from benches import rust_examples
from benches.fleet import Fleet, FleetError
from benches.rust_examples import ExampleError
from benches.scenarios import SMALL, Scenario, Side

NAME = "broker alone"
# 1, 8 and 32 clients, and round trips.
N_MEASUREMENTS = 4


def measure(baseline: str, quick: bool) -> dict[str, Any]:
    """Measure our broker and the baseline's.

    Args:
        baseline: module of the other broker, which gets the same load; nothing runs for it if it is `softs_fast`.
        quick: a tenth of the time, and smaller numbers.

    Returns:
        `ours`, `one_core` (ours with all peers on one core) and `baseline`, each as `broker_bench` reports it,
        or `error`.
    """
    try:
        rust_examples.build("softs-net", "broker_bench")
        # Once more on one core, so that only the work counts and not the scheduler's placement.
        record = {"ours": _run(quick), "one_core": _run(quick, core=max(os.sched_getaffinity(0)))}
        if baseline != "softs_fast":
            record["baseline"] = _run_against(baseline, quick)
    except (ExampleError, FleetError) as error:
        return {"error": str(error)}
    return record


def _run_against(package: str, quick: bool) -> dict[str, Any]:
    # A broker that does not notice the end of its peers would give the next measurement's orders to suppliers of
    # the last one, so each measurement has a broker of its own.
    with ExitStack() as stack:
        fleets = [
            stack.enter_context(Fleet(Scenario(NAME, "idle", SMALL, 1, 0, 0), Side.pure(package)))
            for _ in range(N_MEASUREMENTS)
        ]
        endpoints = [endpoint for fleet in fleets for endpoint in (fleet.frontend, fleet.backend)]
        return _run(quick, "--endpoints", *endpoints)


def _run(quick: bool, *options: str, core: int | None = None) -> dict[str, Any]:
    return rust_examples.run("broker_bench", *(["--quick"] if quick else []), *options, core=core)
