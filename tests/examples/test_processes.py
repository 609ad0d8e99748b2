"""Services in processes of their own: they stop in good order, however the process ends that started them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from demo import Demo

from processes import running

SCRIPT = """
import sys, time
sys.path[:0] = sys.argv[3:]
from pathlib import Path
from processes import running
from test_processes import Recorder

if __name__ == "__main__":
    with running(Recorder, (Path(sys.argv[1]),), (Path(sys.argv[2]),)):
        print("running", flush=True)
        time.sleep(600)
"""


class Recorder:
    """A service that writes down what it is told."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def start(self) -> None:
        self.log.write_text("started")

    def stop(self) -> None:
        self.log.write_text("started, stopped")


class Unwilling(Recorder):
    def start(self) -> None:
        raise OSError("cannot start")


def test_services_stop_when_the_block_ends(tmp_path: Path) -> None:
    logs = [tmp_path / "one", tmp_path / "two"]
    with pytest.raises(RuntimeError, match="of the user"), running(Recorder, *[(log,) for log in logs]):
        raise RuntimeError("of the user")
    assert [log.read_text() for log in logs] == ["started, stopped"] * 2


def test_a_service_that_cannot_start_ends_by_itself(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with running(Unwilling, (tmp_path / "log",)):
        pass
    assert "cannot start" in capfd.readouterr().err
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_services_stop_when_their_parent_ends(
    launch: Callable[..., Demo], tmp_path: Path, eventually: Callable[..., None], end: signal.Signals
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    logs = [tmp_path / "one", tmp_path / "two"]
    here = Path(__file__).parent
    demo = launch(sys.executable, script, *logs, here, here.parents[1] / "examples")
    demo.wait_for("running\n")
    eventually(lambda: all(log.exists() and log.read_text() for log in logs), "both services started")
    demo.process.send_signal(end)
    code, text = demo.finish()
    assert code == -end, text
    assert demo.remaining() == []
    assert [log.read_text() for log in logs] == ["started, stopped"] * 2
