"""kill -9 of any part of a training, and its restart: the others train on, and nobody sees a stale sample."""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
#: What must happen happens within this, or the test hangs; it is never what a test measures.
WATCHDOG_S = 45.0


class Part:
    """A process of part.py."""

    def __init__(self, role: str, folder: Path, **options: Any) -> None:
        self.role = role
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "part.py"), role, json.dumps({"folder": str(folder), **options})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._watchdog = threading.Timer(WATCHDOG_S, self._process.kill)
        self._watchdog.start()

    def event(self, name: str) -> dict[str, Any]:
        """Wait for the next event of this name; a problem fails the test."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event: dict[str, Any] = json.loads(line)
            assert event["event"] != "problem", f"{self.role}: {event['problem']}"
            if event["event"] == name:
                return event
        raise AssertionError(f"{self.role} ended before {name!r}")

    def kill(self) -> None:
        """SIGKILL: nothing is cleaned up."""
        self._process.kill()
        self.end()

    def end(self) -> None:
        """Tell it to end, and wait until it has."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self.wait()

    def ask_to_end(self) -> None:
        """Tell it to end."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait(self) -> None:
        """Wait until it has ended; kill it if it does not."""
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._watchdog.cancel()
        self._watchdog.join()


class Training:
    """A broker, workers, a leader and a follower, each in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.parts: dict[str, Part] = {}

    def start_all(self, *names: str) -> None:
        """Start parts beside each other, and wait until they are ready."""
        for name in names:
            self.begin(name)
        for name in names:
            self.parts[name].event("ready")

    def start(self, name: str) -> dict[str, Any]:
        """Start a part, or start it again, and wait until it is ready; what it says then."""
        return self.begin(name).event("ready")

    def begin(self, name: str) -> Part:
        """Start a part, or start it again."""
        role = {"leader": "student", "follower": "student"}.get(name, name.split()[-1])
        options = {"rank": int(name == "follower")} if role == "student" else {}
        self.parts[name] = Part(role, self._folder, **options)
        return self.parts[name]

    def trains(self, *names: str, rounds: int = 3) -> int:
        """Wait until these students have trained on; the newest generation that one of them saw."""
        newest = 0
        for name in names:
            for _ in range(rounds):
                newest = max(newest, self.parts[name].event("round")["generation"])
        return newest

    def end(self) -> None:
        # A student that asks a broker that is not there waits for the next one.
        for names in (("leader", "follower"), ("worker", "second worker", "broker")):
            parts = [self.parts[name] for name in names if name in self.parts]
            for part in parts:
                part.ask_to_end()
            for part in parts:
                part.end()


@pytest.fixture
def training(short_path: Path) -> Iterator[Training]:
    """A training that goes on until the end of the test."""
    training = Training(short_path)
    yield training
    training.end()


@pytest.mark.timeout(90)
def test_any_part_dies_and_comes_back(training: Training, short_path: Path) -> None:
    training.start_all("broker", "worker", "second worker", "leader", "follower")
    newest = training.trains("leader", "follower")

    # A second leader is refused as long as the first one lives, whom it does not disturb.
    second = Part("student", short_path, rank=0)
    with pytest.raises(AssertionError, match="ended before 'ready'"):
        second.event("ready")
    second.end()
    training.trains("leader", "follower", rounds=10)

    for name in ("worker", "follower", "broker", "leader", "broker", "second worker"):
        training.parts[name].kill()
        others = [student for student in ("leader", "follower") if student != name]
        if name not in ("broker", "leader"):
            # They do not need it.
            training.trains(*others)
        part = training.start(name)
        if name == "leader":
            # It goes on where the one before was.
            assert part["generation"] >= newest
        # More rounds than a pipe may have kept from before.
        newest = training.trains("leader", "follower", rounds=10)
