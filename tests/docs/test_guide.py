"""The programs of docs/guide.md run and print what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import run_script
from waiting import WATCHDOG_S

GUIDE = (Path(__file__).parents[2] / "docs" / "guide.md").read_text()


def section(title: str) -> tuple[str, str]:
    """The program of a section, and what it prints."""
    text = GUIDE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    (program,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    printed = re.findall(r"```text\n(.*?)```", text, flags=re.DOTALL)
    return program, "".join(printed)


def write(folder: Path, program: str) -> Path:
    """Write a program with sockets of its own: others may be running on this machine."""
    has_own = "sf.Fleet(" in program or "df.Flow" in program
    assert ("/tmp/" in program) != has_own, "a fleet and a flow have their own sockets already"
    script = folder / "ranks.py"
    script.write_text(program.replace("/tmp/", f"{folder}/"))
    return script


@pytest.mark.full
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "title",
    [
        "One script",
        "A fleet of workers",
        "Workers by load",
        "Teachers",
        "Batches ahead of the training step",
        "Texts of different lengths",
        "Several models on the same rows",
        "A codec of your own",
    ],
)
def test_programs(short_path: Path, title: str) -> None:
    program, printed = section(title)
    script = write(short_path, program)
    done = run_script(script)
    assert done.returncode == 0, done.stderr
    # On a slow machine a fleet shows how far its start is.
    errors = re.sub(r"\d of \d workers serve after \d+ s\n", "", done.stderr)
    assert (done.stdout, errors) == (printed, "")


@pytest.mark.full
def test_ranks(short_path: Path) -> None:
    program, _ = section("Many ranks")
    script = write(short_path, program)
    run = [sys.executable, str(script)]
    peers = [subprocess.Popen([*run, role]) for role in ("broker", "worker")]
    try:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*torchrun, str(script)], capture_output=True, text=True, timeout=WATCHDOG_S, env=environment
        )
        assert done.returncode == 0, done.stderr
        assert peers[1].wait(timeout=WATCHDOG_S) == 0, "STOP ends the worker"
    finally:
        for peer in peers:
            peer.kill()
            peer.wait()


def test_there_is_no_other_program() -> None:
    assert GUIDE.count("```python\n") == 9
