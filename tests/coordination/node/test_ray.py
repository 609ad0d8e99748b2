"""The program of docs/launchers.md under a real Ray: a trainer and the coordinator are killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ray_environment import driver

DRIVER = Path(__file__).with_name("ray_driver.py")
N_STEPS = 3000


@pytest.mark.slow
# Downloads of some 100 MB the first time.
@pytest.mark.timeout(600)
def test_ray_starts_a_trainer_and_the_coordinator_again(short_path: Path) -> None:
    with driver(DRIVER, short_path / "state", folder=short_path) as process:
        out, _ = process.communicate(timeout=240)
    assert process.returncode == 0, (short_path / "errors").read_text()
    said = [
        json.loads(line) for line in out.splitlines() if line.startswith(("[", '"')) and "pid=" not in line
    ]
    # The mean of the gradients of the data 0, 1, 2, 0, ... is 1; the learning rate is an eighth. All of it is exact.
    weights = [[-N_STEPS / 8] * 8]
    assert said == ["killed both", [weights, weights]]
