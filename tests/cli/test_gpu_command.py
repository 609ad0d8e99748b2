"""`softs-fast gpu` where there is no GPU that it could use."""

from __future__ import annotations

import ctypes
import json
import re
from pathlib import Path

import pytest
from shell import Command, Run

from softs_fast import gpu


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


pytestmark = pytest.mark.skipif(has_driver(), reason="this machine has NVIDIA's driver")


def test_without_a_driver_it_says_so_and_loads_no_torch(command: Command, tmp_path: Path) -> None:
    """The process of the command starts at once, and a driver that hangs does not hang it."""
    path = tmp_path / "result.json"
    arguments = ["gpu", "--quick", "--output", str(path)]
    status, out, text = command.run(*arguments, PYTHONPROFILEIMPORTTIME="1")
    assert (status, out) == (2, f"wrote {path}\n")
    loaded = re.findall(r"^import time: .*\|\s+(\S+)$", text, flags=re.MULTILINE)
    assert "softs_fast.gpu.run" in loaded
    assert "torch" not in loaded
    errors = re.sub(r"^import time: .*\n", "", text, flags=re.MULTILINE)
    assert errors.startswith("softs-fast: no driver: libcuda.so.1 cannot be loaded (")
    assert "start the container with its devices" in errors.splitlines()[0]
    assert "Traceback" not in errors
    result = json.loads(path.read_text())
    assert result["steps"] == []
    assert [f"softs-fast: {text}" for text in result["machine"]["problems"]] == errors.splitlines()


def test_it_leaves_no_file_that_was_not_asked_for(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gpu, "run_step", lambda *_, **__: gpu.Outcome("timed out", 1.0, "it has hung"))
    status, out, errors = run("gpu")
    assert (status, out) == (2, "")
    assert errors == "softs-fast: the driver or torch does not answer: it has hung\n"
    assert not list(tmp_path.iterdir())


def test_a_step_that_there_is_not_is_an_error_before_anything_runs(run: Run) -> None:
    status, out, errors = run("gpu", "--only", "pack,packs")
    assert (status, out) == (1, "")
    assert errors.startswith('softs-fast: there is no step "packs"; need some of: facts, memory, pack, ')
    assert errors.count("\n") == 1
