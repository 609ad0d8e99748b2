"""The programs of docs/record.md run one after the other, and print what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "record.md").read_text()
PROGRAMS = re.findall(r"```python(?: title=(\S+))?\n(.*?)```", PAGE, flags=re.DOTALL)
PRINTED = re.findall(r"```text\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_the_programs_print_what_the_page_says(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    printed = {}
    for title, program in PROGRAMS:
        (tmp_path / (title or "last.py")).write_text(program)
        done = subprocess.run(
            [sys.executable, title or "last.py"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        printed[title] = done.stdout
    assert printed["record.py"] + printed["replay.py"] == PRINTED[0]
    assert [printed[f"{name}.py"] for name in ("mix", "export", "plain")] == PRINTED[1:]
    assert printed[""] == "10 {'positions': {'digits': 3200}}\n"


def test_reading_without_this_package_takes_few_lines() -> None:
    (plain,) = (program for title, program in PROGRAMS if title == "plain.py")
    assert len(plain.splitlines()) <= 20
    assert "softs_fast" not in plain
