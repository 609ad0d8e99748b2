"""The programs of docs/job.md run as two ranks and under torchrun, and print what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "job.md").read_text()
PROGRAMS = dict(re.findall(r"```python title=(\S+)\n(.*?)```", PAGE, flags=re.DOTALL))
pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """That of a program that finds the module of the page."""
    for name, program in PROGRAMS.items():
        (tmp_path / name).write_text(program)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def run(folder: Path, environment: dict[str, str], *command: str) -> list[str]:
    """Run a command beside suppliers; the lines that it prints."""
    fleet = ["softs_fast", "run", "--factory", "teacher:make_supplier", "--workers", "2", "--"]
    done = subprocess.run(
        [sys.executable, "-m", *fleet, *command],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def printed() -> list[str]:
    """Return what the page says that plain.py prints; later texts are of other commands."""
    text, *_ = re.findall(r"```text\n(.*?)```", PAGE, flags=re.DOTALL)
    return str(text).splitlines()


def test_programs_are_short() -> None:
    assert max(len(program.splitlines()) for program in PROGRAMS.values()) <= 25
    assert PAGE.count("```python") == len(PROGRAMS) == 5


def test_two_ranks(tmp_path: Path, environment: dict[str, str]) -> None:
    pytest.importorskip("google.protobuf", reason="needs the extra grpc")
    options = ["--job", "digits", "--world-size", "2", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [sys.executable, "-m", "softs_fast", "coordinator", "run", *options],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as coordinator:
        assert coordinator.stdout is not None
        try:
            address = coordinator.stdout.readline().split()[1]
            ranks = f"{sys.executable} plain.py & {sys.executable} plain.py & wait"
            told = {**environment, "SOFTS_FAST_COORDINATOR": address}
            assert run(tmp_path, told, "sh", "-c", ranks) == printed()
        finally:
            coordinator.terminate()


@pytest.mark.parametrize("name", [pytest.param("ddp.py", marks=pytest.mark.slow), "fsdp.py", "hf.py"])
def test_two_ranks_under_torchrun(tmp_path: Path, environment: dict[str, str], name: str) -> None:
    """tests/job/test_group_job.py kills such ranks."""
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "3"]
    lines = run(tmp_path, environment, sys.executable, "-m", *torchrun, name)
    expected = printed()
    if name == "hf.py":
        expected = PAGE.split("title=hf.py")[1].split("```text\n")[1].split("```")[0].splitlines()
        # Before it there is what the Trainer says.
        lines = [line for line in lines if line in expected]
    assert {*lines} == {*expected}
    assert {one.name for one in (tmp_path / f"ckpt-{name[:-3]}").glob("step-*")} == {
        f"step-000000{n}0" for n in (2, 3, 4)
    }
