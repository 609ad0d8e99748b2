"""Mediums in other processes."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from market import zygote
from segments import remove

from softs_fast import _core

SLOT_BYTES = 16
N_SLOTS = 3


class Child:
    """The other end of the role in `medium.py`."""

    def __init__(self, package: str, medium: str, role: str, address: str | None) -> None:
        options = {
            "package": package,
            "medium": medium,
            "owns": role == "own",
            "address": address,
            "slot_size": SLOT_BYTES,
            "n_slots": N_SLOTS,
        }
        self.process = zygote(package).fork("medium", options)
        self.address: str = self.answer()

    def ask(self, line: str) -> Any:
        self.tell(line)
        return self.answer()

    def tell(self, line: str) -> None:
        self.process.tell(line)

    def answer(self) -> Any:
        return self.process.event("answer")["value"]

    def write(self, offset: int, data: bytes) -> bool:
        done: bool = self.ask(f"write {offset} {data.hex()}")
        return done

    def read(self, slot: int) -> bytes:
        return bytes.fromhex(self.ask(f"read {slot}"))

    def end(self) -> None:
        self.process.end()

    def kill(self) -> None:
        self.process.kill()


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    """Start a process with a medium: package, class, role, address. What the processes of softs leave is removed."""
    children: list[Child] = []
    owned: list[str] = []

    def start(package: str, name: str, role: str, address: str | None = None) -> Child:
        children.append(Child(package, name, role, address))
        if (package, name, role) == ("softs", "ShmMedium", "own"):
            owned.append(children[-1].address)
        return children[-1]

    yield start
    for one in children:
        one.kill()
    remove(owned)
    _core.sweep()  # as the next peer would: the segments of owners that were killed
