"""The averaging example: a poisoned rank is rescued, the others are not spoilt, a picture is drawn, nothing is left."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from demo import Demo

EXAMPLE = Path(__file__).parents[2] / "examples" / "averaging_digits.py"
pytestmark = pytest.mark.timeout(180)


@pytest.mark.slow
def test_selective_averaging_rescues_the_poisoned_rank_and_spares_the_others(
    launch: Callable[..., Demo], tmp_path: Path
) -> None:
    picture = tmp_path / "picture.png"
    text = launch(sys.executable, EXAMPLE, "--steps", "320", "--output", picture).succeeds(picture)
    assert re.search(
        r"^rank 3, step \d+: metric [\d.]+ is among the worst 1 of \d; mean of rank [012, ]+$",
        text,
        re.MULTILINE,
    )
    rows = {
        name: [float(value) for value in values]
        for name, *values in re.findall(r"^(\w[\w ]+?) +([\d.]+)% +([\d.]+)% +([\d.]+)%$", text, re.MULTILINE)
    }
    assert set(rows) == {"no averaging", "mean of all ranks", "selective averaging"}, text
    poisoned, others, lowest = range(3)
    assert rows["selective averaging"][poisoned] > rows["no averaging"][poisoned]
    assert rows["selective averaging"][lowest] > rows["mean of all ranks"][lowest] + 10
    assert all(row[others] > 85 for row in rows.values())


def test_too_few_steps_are_refused(refused: Callable[..., tuple[object, str]]) -> None:
    code, text = refused("averaging_digits", "--steps", "10")
    assert code == 2
    assert "--steps is 10; the four quarters of the run need 80" in text
