"""The layer-by-layer example: layers learn, training goes on where it was cut, all modes work, nothing is left behind."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from demo import Demo, check_gone, interrupt
from waiting import eventually

EXAMPLE = Path(__file__).parents[2] / "examples" / "distill_llm.py"
QUICK = (
    "teacher.layers=2",
    "teacher.max_tokens=24",
    "train.batches=16",
    "train.passes=2",
    "train.held_out_batches=3",
    "train.checkpoint_every=2",
)
RUNS_ALONE = 120.0
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run without interruption: its folder, and what it printed."""
    folder = tmp_path_factory.mktemp("finished")
    demo = Demo(*command(folder))
    try:
        return folder, demo.succeeds(folder / "loss.png")
    finally:
        demo.output.close()


@pytest.mark.full
def test_layers_come_closer_to_the_teacher(finished: tuple[Path, str]) -> None:
    folder, text = finished
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
    assert text.endswith(f"picture: {folder / 'loss.png'}\n")


@pytest.mark.full
def test_goes_on_exactly_where_it_was_interrupted(
    finished: tuple[Path, str], launch: Callable[..., Demo], tmp_path: Path
) -> None:
    # One worker instead of two: the stream is the same.
    demo = launch(*command(tmp_path, "worker.count=1"))
    checkpoint = tmp_path / "checkpoint.pt"
    eventually(checkpoint.exists, "a checkpoint", watched=demo, within_s=RUNS_ALONE)
    segments = demo.segments()
    assert segments
    assert len(demo.processes()) >= 2  # student with broker, and worker
    interrupt(demo)
    check_gone(demo, segments)

    before = load(checkpoint)
    assert (before["layer"], before["batches_done"]) != (2, 0), "it was too quick to be interrupted"
    text = launch(*command(tmp_path, "worker.count=1", "resume=true")).succeeds()
    assert f"resumed: layer {before['layer']}, batch {before['batches_done']}" in text

    there, here = load(finished[0] / "checkpoint.pt"), load(checkpoint)
    for layer, (expected, got) in enumerate(zip(there["results"], here["results"], strict=True)):
        assert got["losses"] == pytest.approx(expected["losses"], rel=1e-4), layer
        assert got["error_before"] == pytest.approx(expected["error_before"], rel=1e-4)
        assert got["error_after"] == pytest.approx(expected["error_after"], rel=1e-4)
    for expected, got in zip(there["finished"], here["finished"], strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.full
def test_each_part_in_a_terminal_of_its_own(
    launch: Callable[..., Demo], tmp_path: Path, short_path: Path
) -> None:
    settings = ("teacher.layers=1", "teacher.max_tokens=16", "train.batches=3", f"endpoint_dir={short_path}")
    broker = launch(*command(tmp_path, *settings, "mode=broker"))
    worker = launch(*command(tmp_path, *settings, "mode=worker"))
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    text = launch(*torchrun, *command(tmp_path, *settings, "mode=student")[1:]).succeeds()
    assert len(re.findall(r"^layer 0 .*%$", text, re.MULTILINE)) == 1  # one rank reports for both
    assert load(tmp_path / "checkpoint.pt")["settings"]["ranks"] == 2
    # The leader's STOP ended the worker; a broker stays until it is told.
    worker.succeeds()
    interrupt(broker)
    check_gone(broker, [])


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


def load(path: Path) -> dict[str, Any]:
    """What a checkpoint holds."""
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state
