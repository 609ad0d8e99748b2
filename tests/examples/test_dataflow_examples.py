"""The examples of flows: PPO learns with fresh rows and with old ones, and fine-tuning saves what it has learned."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from demo import Demo

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.timeout(180)


@pytest.mark.full
@pytest.mark.parametrize(
    "workers", ["0", pytest.param("4", marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_ppo_learns_synchronously_and_with_rows_that_are_a_step_old(
    launch: Callable[..., Demo], tmp_path: Path, workers: str
) -> None:
    """In worker processes the rows of a step are those that are ready, and at most as old."""
    picture = tmp_path / "picture.png"
    options = ("--steps", "25", "--workers", workers, "--output", picture)
    text = launch(sys.executable, EXAMPLES / "ppo_tiny.py", *options).succeeds(picture)
    rewards = re.findall(r"^max_age=([01]): reward ([\d.]+) -> ([\d.]+)$", text, re.MULTILINE)
    assert [age for age, _, _ in rewards] == ["0", "1"], text
    for _, first, last in rewards:
        assert float(first) < 0.3
        assert float(last) > 0.8
    oldest = re.findall(
        r"^max_age=([01]) step +\d+: .*oldest row (\d) of at most (\d) steps", text, re.MULTILINE
    )
    assert {age for age, _, _ in oldest} == {"0", "1"}
    assert all(int(found) <= int(bound) == int(age) for age, found, bound in oldest)
    if workers == "0":
        assert set(oldest) == {("0", "0", "0"), ("1", "1", "1")}
    assert f"picture: {picture}" in text


@pytest.mark.slow
def test_ppo_in_processes_has_the_bits_of_one_process(launch: Callable[..., Demo], tmp_path: Path) -> None:
    lines = []
    for workers in ("0", "2"):
        options = ["--steps", "3", "--output", tmp_path / "picture.png", "--workers", workers]
        text = launch(sys.executable, EXAMPLES / "ppo_tiny.py", *options).succeeds()
        lines.append(re.findall(r"^max_age=0 step.*$", text, re.MULTILINE))
        assert len(re.findall(r"^max_age=1 step.*of at most 1 steps", text, re.MULTILINE)) == 3, text
    assert len(lines[0]) == 3
    assert lines[0] == lines[1]


@pytest.mark.full
@pytest.mark.parametrize("workers", ["0", pytest.param("2", marks=pytest.mark.slow)])
def test_fine_tuning_saves_and_loads_what_it_has_learned(launch: Callable[..., Demo], workers: str) -> None:
    options = ("--texts", "2800", "--workers", workers)
    text = launch(sys.executable, "-W", "error", EXAMPLES / "sft_tiny.py", *options).succeeds()
    losses = [
        float(loss) for loss in re.findall(r"^step +\d+: loss [\d.]+, held out ([\d.]+)$", text, re.MULTILINE)
    ]
    assert len(losses) == 2
    assert losses[1] < 0.5 * 4.85  # that of a model that knows nothing is log(128)
    assert re.search(r"^last step: \d+ rows, dropped so far: \{'short': \d+\}$", text, re.MULTILINE), text
    assert re.search(r"^loaded step 80: held out [\d.]+, the same$", text, re.MULTILINE), text


@pytest.mark.parametrize(("example", "option"), [("ppo_tiny", "--steps"), ("sft_tiny", "--texts")])
def test_too_little_is_refused(refused: Callable[..., tuple[object, str]], example: str, option: str) -> None:
    code, text = refused(example, option, "0")
    assert code == 2
    assert f"{option} is 0; need at least" in text
