"""What is known so far is in the file after each step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from softs_fast.errors import SoftsError
from softs_fast.gpu.plan import Step
from softs_fast.gpu.report import Report
from softs_fast.gpu.run import Outcome

FIRST, SECOND = (Step(name, f"proves {name}", "m:f", 10) for name in ("first", "second"))
MACHINE = {"driver": 13000, "devices": [{"name": "NVIDIA H200"}]}


def test_the_file_has_each_step_after_its_end(tmp_path: Path) -> None:
    report = Report([FIRST, SECOND], True, MACHINE)
    path = report.write(tmp_path / "result.json")
    assert [step["state"] for step in json.loads(path.read_text())["steps"]] == ["not run", "not run"]
    report.add(FIRST, Outcome("passed", 1.25, result={"note": "all well"}, output="the tail"))
    report.write(path)
    result = json.loads(path.read_text())
    assert result["machine"] == MACHINE
    assert (result["quick"], result["ended"]) == (True, None)
    assert result["steps"][0] == {
        "name": "first",
        "proves": "proves first",
        "limit_s": 10,
        "state": "passed",
        "seconds": 1.25,
        "reason": "",
        "result": {"note": "all well"},
        "output": "the tail",
    }
    assert result["steps"][1]["state"] == "not run"
    report.add(SECOND, Outcome("skipped", 0.5, "needs more"))
    report.write(path)
    assert json.loads(path.read_text())["ended"] >= result["began"]
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]


def test_what_failed_is_known_and_the_table_tells_why() -> None:
    report = Report([FIRST, SECOND], False, MACHINE)
    report.add(SECOND, Outcome("skipped", 0.5, "needs more"))
    report.add(FIRST, Outcome("passed", 1.25, result={"note": "all well"}))
    assert not report.has_failed
    assert report.rows() == [
        ["first", "passed", "1.2", "all well"],
        ["second", "skipped", "0.5", "needs more"],
    ]
    for state in ("failed", "killed", "timed out"):
        report.add(FIRST, Outcome(state, 1.0, "the cause", result={"note": "all well"}))
        assert report.has_failed
        assert report.rows()[0] == ["first", state, "1.0", "the cause"]


def test_in_a_folder_the_name_tells_the_device(tmp_path: Path) -> None:
    assert Report([], False, MACHINE).write(tmp_path) == tmp_path / "gpu-nvidia-h200.json"


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        SoftsError, match=r"cannot write .*/nowhere/a.json: No such file or directory; name another"
    ):
        Report([], False, MACHINE).write(tmp_path / "nowhere" / "a.json")
