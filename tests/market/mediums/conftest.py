"""Mediums in other processes."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SLOT_BYTES = 16
N_SLOTS = 3


class Child:
    """The other end of `child.py`."""

    def __init__(self, package: str, name: str, role: str, address: str | None) -> None:
        script = Path(__file__).with_name("child.py")
        arguments = [package, name, role, address or "-", str(SLOT_BYTES), str(N_SLOTS)]
        # softs on Python before 3.13 makes the resource tracker complain about segments of others.
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.address = self.answer()

    def ask(self, line: str) -> str:
        self.tell(line)
        return self.answer()

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the child ended with {self.process.wait()}"
        return line.strip()

    def write(self, offset: int, data: bytes) -> bool:
        return self.ask(f"write {offset} {data.hex()}") == "True"

    def read(self, slot: int) -> bytes:
        return bytes.fromhex(self.ask(f"read {slot}"))

    def end(self) -> None:
        self.process.communicate()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    """Start a process with a medium: package, class, role, address."""
    children: list[Child] = []

    def start(package: str, name: str, role: str, address: str | None = None) -> Child:
        children.append(Child(package, name, role, address))
        return children[-1]

    yield start
    for one in children:
        if one.process.poll() is None:
            one.kill()
