"""The layer-by-layer example: layers learn, all modes work, nothing is left behind."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from demo import Demo, check_gone, interrupt

EXAMPLE = Path(__file__).parents[2] / "examples" / "distill_llm.py"
QUICK = (
    "teacher.layers=2",
    "teacher.max_tokens=24",
    "train.batches=16",
    "train.passes=2",
    "train.held_out_batches=3",
    "train.checkpoint_every=2",
)
pytestmark = pytest.mark.timeout(180)


@pytest.mark.full
def test_layers_come_closer_to_the_teacher(launch: Callable[..., Demo], tmp_path: Path) -> None:
    text = launch(*command(tmp_path)).succeeds(tmp_path / "loss.png")
    layers = re.findall(
        r"^layer (\d) +([\d.]+)% +([\d.]+)% +([\d,.]+) +([\d,.]+) +([\d.]+)%$", text, re.MULTILINE
    )
    assert [layer for layer, *_ in layers] == ["0", "1"]
    for _, before, after, teachers, student, starved in layers:
        assert float(after) < 0.85 * float(before)
        assert float(teachers.replace(",", "")) > 0
        assert float(student.replace(",", "")) > 0
        assert 0 <= float(starved) < 100
    assert re.search(
        r"^starvation: the student waited for data for [\d.]+% of the training time$", text, re.MULTILINE
    )
    assert text.endswith(f"picture: {tmp_path / 'loss.png'}\n")


@pytest.mark.slow
def test_each_part_in_a_terminal_of_its_own(
    launch: Callable[..., Demo], tmp_path: Path, short_path: Path
) -> None:
    settings = ("teacher.layers=1", "teacher.max_tokens=16", "train.batches=3", f"endpoint_dir={short_path}")
    broker = launch(*command(tmp_path, *settings, "mode=broker"))
    worker = launch(*command(tmp_path, *settings, "mode=worker"))
    text = launch(*command(tmp_path, *settings, "mode=student")).succeeds()
    assert len(re.findall(r"^layer 0 .*%$", text, re.MULTILINE)) == 1
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["settings"]["ranks"] == 1
    # The leader's STOP ended the worker; a broker stays until it is told.
    worker.succeeds()
    interrupt(broker)
    check_gone(broker)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("mode=teacher", "mode=teacher is unknown; have all, broker, worker, student"),
        ("train.steps=3", "Could not override 'train.steps'"),
    ],
)
def test_refuses_nonsense(refused: Callable[..., tuple[object, str]], setting: str, message: str) -> None:
    text, _ = refused("distill_llm", setting)
    assert str(text).startswith(message)


def command(folder: Path, *settings: str) -> tuple[str | Path, ...]:
    """The example with quick settings, and others that count more."""
    merged = dict(setting.split("=", 1) for setting in (*QUICK, *settings))
    return (
        sys.executable,
        EXAMPLE,
        *(f"{key}={value}" for key, value in merged.items()),
        f"output_dir={folder}",
    )
