"""The folder of a fleet's sockets: short enough for their paths, and removed when its owner was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from softs_fast import _core
from softs_fast.fleet.folder import new_folder, remove_dead_folders
from softs_fast.fleet.status import FleetView, fleets
from softs_fast.market.fleet_report import WorkerReport, write_report


@pytest.fixture(autouse=True)
def place(tmp_path: Path, short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    return short_path


def test_folders_of_dead_owners_are_removed(place: Path) -> None:
    alive = new_folder()
    dead = place / "softs-dead"
    dead.mkdir()
    (dead / "frontend").touch()
    done = subprocess.run(
        [sys.executable, "-c", "from softs_fast import _core; print(*_core.this_process())"],
        capture_output=True,
        text=True,
        check=True,
    )
    (dead / "owner").write_text(done.stdout)
    workers = (WorkerReport("worker 0", "pausing", "boom", 1.0, "2"),)
    for folder in (alive, dead):
        write_report(folder, workers)
    assert fleets() == (FleetView(os.getpid(), f"ipc://{alive}/frontend", workers),)
    for name, text in (("softs-none", None), ("softs-other", "no owner"), ("other", done.stdout)):
        (place / name).mkdir()
        if text is not None:
            (place / name / "owner").write_text(text)
    remove_dead_folders()
    assert {each.name for each in place.iterdir()} == {alive.name, "softs-none", "softs-other", "other"}
    assert (alive / "owner").read_text() == " ".join(map(str, _core.this_process()))


def test_a_long_folder_for_temporary_files_is_left_out(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = 107 - len("/softs-12345678/control_pub")
    fits, too_long = (place / ("d" * (n - len(str(place)) - 1)) for n in (longest, longest + 1))
    for folder, wanted in ((fits, fits), (too_long, Path("/tmp"))):
        folder.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(folder))
        made = new_folder()
        assert made.parent == wanted
        (made / "owner").unlink()
        made.rmdir()
