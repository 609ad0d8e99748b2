"""The demo: it ends with its table and its picture, and Ctrl-C leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "distill_digits.py"
pytestmark = pytest.mark.timeout(180)


class Demo:
    """The demo in a session of its own, so that all its processes can be told from others."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.picture = folder / "out" / "digits.png"
        self.process = subprocess.Popen(
            [sys.executable, "-u", DEMO, "--output", self.picture, "--endpoint-dir", folder, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.output = self.process.stdout

    def wait_for(self, text: str) -> str:
        """Read the output up to `text`, character by character: a progress bar ends no lines."""
        seen = ""
        while not seen.endswith(text):
            character = self.output.read(1)
            assert character, f"the demo ended before {text!r}:\n{seen}"
            seen += character
        return seen

    def finish(self) -> tuple[int, str]:
        """Read to the end; returns the exit code and what was read."""
        rest = self.output.read()
        return self.process.wait(), rest

    def remaining(self) -> list[int]:
        """The processes that do not end by themselves: multiprocessing's resource tracker takes a moment."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                pidfd = os.pidfd_open(pid)
                select.select([pidfd], [], [], 20)
                os.close(pidfd)
        return self.processes()

    def processes(self) -> list[int]:
        """The ids of the demo's processes that are alive."""
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._owns(pid)]

    def segments(self) -> set[Path]:
        """The segments that the demo's first process has mapped, told by their inodes."""
        lines = Path(f"/proc/{self.process.pid}/maps").read_text().splitlines()
        inodes = {int(line.split()[4]) for line in lines if "/dev/shm/" in line}
        return {path for path in Path("/dev/shm").glob("sl_*") if path.stat().st_ino in inodes}

    def _owns(self, pid: int) -> bool:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return False
        state, session = fields[0], int(fields[3])
        return session == self.process.pid and state != "Z"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    """Starts demos; whatever a test leaves of them is killed."""
    demos: list[Demo] = []

    def start(*arguments: str) -> Demo:
        demos.append(Demo(tmp_path, *arguments))
        return demos[-1]

    yield start
    for demo in demos:
        for pid in demo.processes():
            os.kill(pid, signal.SIGKILL)
        demo.process.wait()
        demo.output.close()


def test_ends_with_table_and_picture(start: Callable[..., Demo]) -> None:
    demo = start("--steps", "40", "--batch-size", "32", "--suppliers", "2")
    demo.wait_for("students: 40 steps of 32 fresh images")
    code, text = demo.finish()
    assert code == 0, text
    teacher, soft, hard = (
        float(re.search(rf"^{name} +[\d,]+ +([\d.]+)%$", text, re.MULTILINE)[1])  # type: ignore[index]
        for name in ("teacher", "student, soft labels", "student, hard labels")
    )
    # Guessing reads a tenth of the scans: each has learnt, and the students not from nothing.
    assert teacher > 95
    assert min(soft, hard) > 20
    assert re.search(r"^1,280 samples in [\d.]+ s: [\d,]+ samples/s$", text, re.MULTILINE)
    assert re.search(r"^starvation: .* [\d.]+% of that time$", text, re.MULTILINE)
    assert text.endswith(f"picture: {demo.picture}\n")
    assert "Traceback" not in text
    assert demo.picture.read_bytes().startswith(b"\x89PNG")
    assert demo.picture.stat().st_size > 50_000
    assert demo.remaining() == []


@pytest.mark.parametrize("whom", ["everyone", "parent"])
def test_interrupt_while_training_leaves_nothing(start: Callable[..., Demo], whom: str) -> None:
    demo = start("--steps", "6000")
    demo.wait_for("samples/s")
    segments = demo.segments()
    assert segments
    assert len(demo.processes()) >= 3
    interrupt(demo, whom)
    check_gone(demo, segments)


def test_interrupt_while_suppliers_start_leaves_nothing(start: Callable[..., Demo]) -> None:
    demo = start("--steps", "6000")
    # The suppliers have been started by now, and are busy importing.
    demo.wait_for("teacher:")
    interrupt(demo, "everyone")
    check_gone(demo, set())


def test_suppliers_end_when_the_demo_is_killed(start: Callable[..., Demo]) -> None:
    demo = start("--steps", "6000")
    demo.wait_for("samples/s")
    segments = demo.segments()
    demo.process.kill()
    demo.output.read()  # ends when the last process that could write to it is gone
    assert demo.process.wait() == -signal.SIGKILL
    assert demo.remaining() == []
    for segment in segments:  # nobody was left to do it; the next peer that starts would
        segment.unlink(missing_ok=True)


def test_refuses_nonsense(start: Callable[..., Demo]) -> None:
    code, text = start("--suppliers", "0").finish()
    assert code == 2
    assert "0 is not 1 or more" in text


def interrupt(demo: Demo, whom: str) -> None:
    """What Ctrl-C in a terminal does, or `kill -INT` on the parent alone."""
    if whom == "everyone":
        os.killpg(demo.process.pid, signal.SIGINT)
    else:
        demo.process.send_signal(signal.SIGINT)


def check_gone(demo: Demo, segments: set[Path]) -> None:
    code, text = demo.finish()
    assert code == 130, text
    assert "Traceback" not in text
    assert "interrupted" in text
    assert [segment for segment in segments if segment.exists()] == []
    assert demo.remaining() == []
