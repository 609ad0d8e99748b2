"""The demo ends with its table and its picture."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from demo import Demo

DEMO = Path(__file__).parents[2] / "examples" / "distill_digits.py"
pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """What the demo draws."""
    return tmp_path / "out" / "digits.png"


@pytest.fixture
def start(launch: Callable[..., Demo], picture: Path) -> Callable[..., Demo]:
    """Starts the demo."""

    def start(*arguments: str) -> Demo:
        return launch(sys.executable, "-u", DEMO, "--output", picture, *arguments)

    return start


@pytest.mark.full
def test_ends_with_table_and_picture(start: Callable[..., Demo], picture: Path) -> None:
    demo = start("--steps", "40", "--batch-size", "32", "--suppliers", "2")
    demo.wait_for("students: 40 steps of 32 fresh images")
    text = demo.succeeds(picture)
    teacher, soft, hard = (
        float(re.search(rf"^{name} +[\d,]+ +([\d.]+)%$", text, re.MULTILINE)[1])  # type: ignore[index]
        for name in ("teacher", "student, soft labels", "student, hard labels")
    )
    # Guessing reads a tenth of the scans: each has learnt, and the students not from nothing.
    assert teacher > 95
    assert min(soft, hard) > 20
    assert re.search(r"^1,280 samples in [\d.]+ s: [\d,]+ samples/s$", text, re.MULTILINE)
    assert re.search(r"^starvation: .* [\d.]+% of that time$", text, re.MULTILINE)
    assert text.endswith(f"picture: {picture}\n")
    assert picture.stat().st_size > 50_000


def test_refuses_nonsense(refused: Callable[..., tuple[object, str]]) -> None:
    code, text = refused("distill_digits", "--suppliers", "0")
    assert code == 2
    assert "0 is not 1 or more" in text
