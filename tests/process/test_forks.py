"""Every handle that a user can hold, in a fork of the process that made it: it works there, or raises ForkedError at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from coordinator_process import Coordinator

HOLD = "import sys, held_in_fork; held_in_fork.hold(*sys.argv[1:])"


@pytest.mark.timeout(240)  # sixty forks, and the starts of a fleet and of a flow
def test_no_handle_hangs_in_a_fork_or_harms_its_owner(short_path: Path) -> None:
    coordinator = Coordinator("--listen", "127.0.0.1:0", "--world-size", "1").started()
    try:
        ran = subprocess.run(
            [sys.executable, "-c", HOLD, str(short_path), coordinator.address],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
            stdout=subprocess.PIPE,
            check=True,
        )
    finally:
        coordinator.kill()
    seen = {}
    for name, outcomes, afterwards in map(json.loads, ran.stdout.splitlines()):
        seen[name] = outcomes
        assert afterwards == "works", name
        for use, outcome in outcomes.items():
            assert outcome == "works" or outcome.startswith("ForkedError: "), (name, use, outcome)
    assert {"TorchStrategy", "CoordinatorClient", "Fleet", "Flow.in_processes", "RemoteOptimizer"} <= set(
        seen
    )
