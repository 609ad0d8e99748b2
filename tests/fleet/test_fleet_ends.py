"""However the process of a fleet ends, no process and no segment of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from script import started
from segments import made_by
from waiting import eventually

SCRIPT = """
import multiprocessing, os, sys, time
sys.path.insert(0, {folder!r})
import factories
import softs_fast as sf
from softs_fast.fleet import fork_server


def train(fleet, how):
    global used
    if how == "waits with a loader":
        used = iter(fleet.loader("p", factories.CONFIG, num_slots=4, batch_size=2))
        next(used)
    else:  # without torch, which takes seconds to import
        used = sf.Client(fleet.endpoints.frontend, sf.ShmMedium, factories.CONFIG.nbytes(), 4)
        used.hello()
        assert used.request_sample("p", 40_000) is not None
    workers = [child.pid for child in multiprocessing.active_children()]
    print(os.getpid(), *workers, fork_server.last_server().pid, flush=True)
    if how == "exception":
        raise ValueError("the training failed")
    if how.startswith("waits"):
        # A signal just before a wait is handled after it.
        for _ in range(600):
            time.sleep(0.1)
    sys.exit(3)


if __name__ == "__main__":
    fleet = sf.Fleet(factories.make_supplier, n_workers=2)
    if sys.argv[1] == "without block":
        fleet.start()
        train(fleet, sys.argv[1])
    with fleet:
        train(fleet, sys.argv[1])
"""
UNGUARDED = """
import sys
sys.path.insert(0, {folder!r})
import softs_fast as sf


def make_worker():
    return sf.Supplier(generator_fn=lambda product_id: b"x", product_ids=["p"], slot_size=1)


with sf.Fleet(make_worker):
    print("it began")
"""


def written(text: str, folder: Path) -> Path:
    script = folder / "script.py"
    script.write_text(text.format(folder=str(Path(__file__).parent)))
    return script


@pytest.mark.parametrize(
    ("how", "signals"),
    [
        ("exception", []),
        ("without block", []),
        ("exit", []),
        ("waits", [signal.SIGKILL]),
        ("waits, as an actor of Ray", [signal.SIGKILL]),
        ("waits", [signal.SIGTERM]),
        ("waits", [signal.SIGINT]),
        ("waits with a loader", [signal.SIGINT, signal.SIGINT]),
    ],
)
def test_nothing_is_left(tmp_path: Path, how: str, signals: list[signal.Signals]) -> None:
    script, pids = started(str(written(SCRIPT, tmp_path)), how)
    if how.endswith("Ray"):
        # A process of Ray that is to end kills its children first.
        (server,) = (
            pid for pid in pids if f"PPid:\t{script.pid}\n" in Path(f"/proc/{pid}/status").read_text()
        )
        os.kill(server, signal.SIGKILL)
    for number in signals:
        script.send_signal(number)
    _, errors = script.communicate(timeout=40)
    assert len(pids) == 4, errors
    assert script.returncode == 3 if how in ("without block", "exit") else script.returncode != 0
    assert ("the training failed" in errors) == (how == "exception")
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "all processes have ended")
    assert made_by(pids) == [], "the last of them has removed the segments"


def test_a_script_without_a_guard_is_told_about_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, written(UNGUARDED, tmp_path)], capture_output=True, text=True, timeout=40
    )
    assert done.returncode == 1
    assert "it began" not in done.stdout
    assert 'under if __name__ == "__main__":' in done.stderr
