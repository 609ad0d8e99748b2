"""The example of transformers' Trainer: the loss falls, there is a picture, and nothing is left."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from demo import Demo

EXAMPLE = Path(__file__).parents[2] / "examples" / "distill_trainer.py"


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_loss_falls(launch: Callable[..., Demo], tmp_path: Path) -> None:
    picture = tmp_path / "out" / "loss.png"
    options = ("--epochs", "2", "--steps", "15", "--output", picture)
    text = launch(sys.executable, "-u", EXAMPLE, *options).succeeds(picture)
    first, last, steps = re.search(r"^loss ([\d.]+) -> ([\d.]+) in (\d+) steps$", text, re.MULTILINE).groups()  # type: ignore[union-attr]
    assert float(last) < 0.7 * float(first)
    assert int(steps) == 30
    assert re.search(r"^[\d,]+ samples/s; the student waited for \d+% of the time$", text, re.MULTILINE)
    assert text.endswith(f"picture: {picture}\n")
