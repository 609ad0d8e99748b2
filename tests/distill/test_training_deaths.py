"""kill -9 of any part of a training, and its restart: the others train on, and none sees a stale sample."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from process import Process, Zygote

PART = Path(__file__).with_name("part.py")


class Training:
    """A broker, workers, a leader and a follower, each in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.parts: dict[str, Process] = {}

    def start_all(self, *names: str) -> None:
        """Start parts beside each other, and wait until they are ready."""
        for name in names:
            self.begin(name)
        for name in names:
            self.parts[name].event("ready")

    def start(self, name: str) -> dict[str, Any]:
        """Start a part, or start it again, and wait until it is ready; what it says then."""
        return self.begin(name).event("ready")

    def begin(self, name: str) -> Process:
        """Start a part, or start it again."""
        role = {"leader": "student", "follower": "student"}.get(name, name.split()[-1])
        options = {"rank": int(name == "follower")} if role == "student" else {}
        self.parts[name] = Zygote.of(PART).fork(role, {"folder": str(self._folder), **options})
        return self.parts[name]

    def trains(self, *names: str, rounds: int = 3) -> int:
        """Wait until these students have trained on; the newest generation that one of them saw."""
        newest = 0
        for name in names:
            self.parts[name].drain()
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

    # A second leader is refused as long as the first one lives, which it does not disturb.
    second = Zygote.of(PART).fork("student", {"folder": str(short_path), "rank": 0})
    with pytest.raises(AssertionError, match="rank 0 is taken by a live student"):
        second.event("ready")
    assert second.wait() == 1
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
        newest = training.trains("leader", "follower", rounds=10)
