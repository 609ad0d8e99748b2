"""Each bench of flows runs to its end, with the fewest rounds; what it measures is not looked at."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import WATCHDOG_S

ROOT = Path(__file__).parents[2]
BENCHES = sorted(path.stem for path in (ROOT / "benches").glob("dataflow_*.py"))
#: How each is run with the fewest rounds.
FEWEST = {
    "dataflow_control": ["--rounds", "2", "--workers", "1", "2"],
    "dataflow_datasets": ["--steps", "4"],
    "dataflow_deaths": ["--rounds", "1"],
    "dataflow_hosts": ["1"],
    "dataflow_journal": ["2"],
    "dataflow_order": ["--flows", "2"],
    "dataflow_overlap": ["--steps", "4"],
    "dataflow_plan": ["1"],
    "dataflow_ranks": ["1"],
    "dataflow_recovery": ["--kills", "1"],
    "dataflow_rows": ["1"],
    "dataflow_store": ["1"],
    "dataflow_watch": ["--steps", "5", "--rounds", "1"],
    "dataflow_weights": ["1"],
}


def test_it_is_known_how_each_is_run_with_the_fewest_rounds() -> None:
    assert set(BENCHES) <= set(FEWEST)


@pytest.mark.slow
@pytest.mark.timeout(10 * WATCHDOG_S + 60)
@pytest.mark.parametrize("bench", BENCHES)
def test_it_runs_to_its_end_and_prints_numbers(bench: str) -> None:
    command = [sys.executable, "-m", f"benches.{bench}", *FEWEST[bench]]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=10 * WATCHDOG_S
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "Traceback" not in done.stderr, done.stderr[-4000:]
    assert len(re.findall(r"\d+\.\d+", done.stdout)) >= 3, done.stdout
