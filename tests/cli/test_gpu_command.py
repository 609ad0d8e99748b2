"""`softs-fast gpu` where there is no GPU that it could use."""

from __future__ import annotations

import ctypes
import json
import re
from pathlib import Path

import pytest
from shell import Command


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


pytestmark = pytest.mark.skipif(has_driver(), reason="this machine has NVIDIA's driver")


def test_without_a_driver_it_says_so(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    status, out, errors = command.run("gpu", "--quick", "--output", str(path))
    assert (status, out) == (2, f"wrote {path}\n")
    assert errors.startswith("softs-fast: no driver: libcuda.so.1 cannot be loaded (")
    assert "start the container with its devices" in errors.splitlines()[0]
    assert "Traceback" not in errors
    result = json.loads(path.read_text())
    assert result["steps"] == []
    assert [f"softs-fast: {text}" for text in result["machine"]["problems"]] == errors.splitlines()


def test_a_step_that_there_is_not_is_an_error_before_anything_runs(command: Command) -> None:
    status, out, errors = command.run("gpu", "--only", "pack,packs")
    assert (status, out) == (1, "")
    assert errors.startswith('softs-fast: there is no step "packs"; need some of: facts, memory, pack, ')
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "module", "expected"), [(["--help"], "softs_fast.cli", 0), ([], "softs_fast.gpu.run", 2)]
)
def test_the_process_of_the_command_loads_no_torch_and_leaves_no_file(
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    module: str,
    expected: int,
) -> None:
    """It starts at once, and a driver that hangs does not hang it."""
    monkeypatch.chdir(tmp_path)
    status, _, text = command.run("gpu", *arguments, PYTHONPROFILEIMPORTTIME="1")
    assert status == expected
    assert not list(tmp_path.iterdir())
    loaded = re.findall(r"^import time: .*\|\s+(\S+)$", text, flags=re.MULTILINE)
    assert module in loaded
    assert "torch" not in loaded
