"""The programs of docs/hosts.md run as the page says, and print what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from waiting import free_ports

PAGE = (Path(__file__).parents[2] / "docs" / "hosts.md").read_text()
PROGRAMS = dict(re.findall(r"```python title=(\S+)\n(.*?)```", PAGE, flags=re.DOTALL))
pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]


#: Sections with steps.
SECTIONS = ["In five minutes", "A student that sets the model"]


def section(title: str) -> str:
    """The text of a section."""
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def commands(title: str) -> list[str]:
    """The lines of the steps; the token is made once."""
    lines = re.findall(r"^   (softs-fast .*|python .*)$", section(title), re.MULTILINE)
    new = "softs-fast keys new job.token"
    return lines if new in lines else [new, *lines]


@pytest.mark.parametrize("title", SECTIONS)
def test_it_takes_three_lines(title: str) -> None:
    assert len(commands(title)) == 3


@pytest.mark.parametrize("title", SECTIONS)
def test_a_training_with_teachers_of_another_host(short_path: Path, title: str) -> None:
    """Both hosts are this one, and the link has a port that is free."""
    pytest.importorskip("cryptography", reason="makes certificates")
    address = f"127.0.0.1:{free_ports()[0]}"
    for name, program in PROGRAMS.items():
        (short_path / name).write_text(program)
    path = os.pathsep.join([str(short_path), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    softs_fast = f"{sys.executable} -m softs_fast"
    with ExitStack() as stack:
        printed = ""
        for line in commands(title):
            own = line.replace("softs-fast ", f"{softs_fast} ").replace("-- python ", f"-- {sys.executable} ")
            own = own.replace("0.0.0.0", address).replace("--connect teachers", f"--connect {address}")
            process = subprocess.Popen(
                own.split(), cwd=short_path, env=environment, stdout=subprocess.PIPE, text=True
            )
            if "--factory" in own:
                # That of the teachers' host has no other end but that it is stopped.
                stack.callback(process.communicate)
                stack.callback(process.terminate)
            else:
                printed, _ = process.communicate(timeout=280)
                assert process.returncode == 0
    (shown,) = re.findall(r"```text\n(.*?)```", section(title), flags=re.DOTALL)
    assert printed == shown
