"""The programs of docs/trainers.md run and print what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import run_script

PAGE = (Path(__file__).parents[2] / "docs" / "trainers.md").read_text()
pytestmark = pytest.mark.timeout(180)


def program_of(text: str) -> str:
    """The one program in a part of the page."""
    (program,) = re.findall(r"```python.*?\n(.*?)```", text, flags=re.DOTALL)
    return str(program)


def section(title: str) -> tuple[str, list[str]]:
    """The program of a section, and the lines that it prints."""
    text = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    (printed,) = re.findall(r"```text\n(.*?)```", text, flags=re.DOTALL)
    return program_of(text), printed.splitlines()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """That of a program that finds the module of the page."""
    (tmp_path / "teacher.py").write_text(program_of(PAGE.split("\n## ")[0]))
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.full
@pytest.mark.parametrize(
    "title",
    [
        pytest.param("transformers", marks=pytest.mark.slow),
        "Evaluation and resume with transformers",
        "Accelerate",
        "Lightning",
    ],
)
def test_trainers(tmp_path: Path, environment: dict[str, str], title: str) -> None:
    program, printed = section(title)
    script = tmp_path / "train.py"
    script.write_text(program)
    done = run_script(script, environment)
    assert done.returncode == 0, done.stderr
    # Before it there is what the trainer says.
    assert done.stdout.splitlines()[-len(printed) :] == printed


@pytest.mark.full
def test_ranks(tmp_path: Path, environment: dict[str, str]) -> None:
    program, printed = section("DistributedDataParallel and FSDP2")
    script = tmp_path / "train.py"
    script.write_text(program)
    run = ["softs_fast", "run", "--factory", "teacher:make_supplier", "--workers", "2", "--"]
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(
        [sys.executable, "-m", *run, sys.executable, "-m", *torchrun],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    # The lines of two processes may be mixed up.
    assert sorted(re.findall(r"rank \d: \d+ samples", done.stdout)) == printed


def test_there_is_no_other_program() -> None:
    assert PAGE.count("```python") == 6
