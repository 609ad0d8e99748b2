"""The elastic example: a worker is killed and replaced, both trainings end with the same bits, and nothing is left."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from demo import Demo

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_elastic.py"
pytestmark = pytest.mark.timeout(180)


@pytest.mark.slow
def test_a_killed_worker_costs_no_bit(launch: Callable[..., Demo], tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    text = launch(sys.executable, EXAMPLE, "--steps", "60", "--output", picture).succeeds(picture)
    assert "worker 3 is killed; another process takes its place" in text
    assert re.search(r"^epoch 2: step \d+ is committed [\d.]+ s after the kill$", text, re.MULTILINE)
    [undisturbed] = re.findall(r"^undisturbed: +weights (\w{16}) on all workers$", text, re.MULTILINE)
    [disturbed] = re.findall(r"^disturbed: +weights (\w{16}) on all workers$", text, re.MULTILINE)
    assert undisturbed == disturbed
    assert "the same bits" in text
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)$", text, re.MULTILINE)]
    assert losses[4] < losses[0] / 2, "it learns"


def test_too_few_steps_for_a_kill_are_refused(refused: Callable[..., tuple[object, str]]) -> None:
    code, text = refused("train_elastic", "--steps", "10")
    assert code == 2
    assert "--steps is 10; need 20" in text
