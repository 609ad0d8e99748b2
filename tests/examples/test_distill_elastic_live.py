"""The example of a job on live samples: whatever is killed, all steps have the weights of the undisturbed training."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from demo import Demo

EXAMPLE = Path(__file__).parents[2] / "examples" / "distill_elastic_live.py"
pytestmark = pytest.mark.timeout(600)


@pytest.mark.full
def test_whatever_is_killed_costs_no_bit(launch: Callable[..., Demo], tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    picture = tmp_path / "picture.png"
    text = launch(sys.executable, EXAMPLE, "--steps", "30", "--output", picture).succeeds(picture)
    killed = re.findall(r"^  step +(\d+): (\w+) is killed, and started again$", text, re.MULTILINE)
    assert killed == [
        ("5", "rank"),
        ("10", "teacher"),
        ("15", "broker"),
        ("20", "coordinator"),
        ("25", "everything"),
    ]
    assert "the same weights, to the bit, after each of 30 steps of both runs" in text
    first, last = re.search(r"^loss ([\d.]+) -> ([\d.]+)$", text, re.MULTILINE).groups()  # type: ignore[union-attr]
    assert float(last) < float(first), "it learns"


def test_too_few_steps_for_a_checkpoint_are_refused(refused: Callable[..., tuple[object, str]]) -> None:
    code, text = refused("distill_elastic_live", "--steps", "20")
    assert code == 2
    assert "--steps is 20; need 30" in text
