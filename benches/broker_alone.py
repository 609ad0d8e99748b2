"""The broker alone, under clients and suppliers that do nothing but speak the protocol.

They are the Rust example `broker_bench`, which starts our broker by itself. The other package's broker gets
the same load through its endpoints, in a process of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benches.fleet import Fleet, FleetError
from benches.machine import REPOSITORY
from benches.scenarios import SMALL, Scenario, Side

NAME = "broker alone"
LIMIT_S = 300
# 1, 8 and 32 clients, and round trips.
N_MEASUREMENTS = 4


def measure(baseline: str, quick: bool) -> dict[str, Any]:
    """Measure our broker and the baseline's.

    Args:
        baseline: module whose broker gets the same load; nothing runs for it where it is `softs_fast`.
        quick: a tenth of the time, and smaller numbers.

    Returns:
        `ours`, `one_core` (ours with all peers on one core) and `baseline`, each as `broker_bench` reports it,
        or `error`.
    """
    cargo = shutil.which("cargo")
    if cargo is None:
        return {"error": "cargo is missing; it builds the load generator"}
    build = [cargo, "build", "--quiet", "--release", "-p", "softs-net", "--example", "broker_bench"]
    try:
        subprocess.run(build, cwd=REPOSITORY, check=True, timeout=LIMIT_S)
        # Once more on one core: there it does not matter where the scheduler puts whom, only what has to be done.
        record = {"ours": _run(quick), "one_core": _run(quick, core=max(os.sched_getaffinity(0)))}
        if baseline != "softs_fast":
            record["baseline"] = _run_against(baseline, quick)
    except (subprocess.SubprocessError, FleetError) as error:
        return {"error": str(error)}
    return record


def _run_against(package: str, quick: bool) -> dict[str, Any]:
    # A broker that does not see its peers go would hand the next measurement's orders to the last one's
    # suppliers, so each measurement has a broker of its own.
    with ExitStack() as stack:
        fleets = [
            stack.enter_context(Fleet(Scenario(NAME, "idle", SMALL, 1, 0, 0), Side.pure(package)))
            for _ in range(N_MEASUREMENTS)
        ]
        endpoints = [endpoint for fleet in fleets for endpoint in (fleet.frontend, fleet.backend)]
        return _run(quick, "--endpoints", *endpoints)


def _run(quick: bool, *options: str, core: int | None = None) -> dict[str, Any]:
    folder = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
    command = [
        str(folder / "release" / "examples" / "broker_bench"),
        *(["--quick"] if quick else []),
        *options,
    ]
    if core is not None:
        taskset = shutil.which("taskset")
        command = [taskset, "--cpu-list", str(core), *command] if taskset else command
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT_S)
    report: dict[str, Any] = json.loads(done.stdout)
    return report
