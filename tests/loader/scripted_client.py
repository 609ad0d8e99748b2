"""A client that does as it is told, for the decisions of the code that uses it."""

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

import softs_fast
from softs_fast import NoSupplier

CONFIG = softs_fast.make_xy_config((2,), "float32", (), "int64")
SAMPLE = CONFIG.encode(x=torch.ones(2), y=torch.tensor(1))


class MadeUpClient:
    """What clients that make their samples themselves have in common; no fleet has their broker."""

    fleet = None

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.followed: list[str] = []

    def leave_after(self, product_id: str, memory: Any, word: int) -> bool:
        time.sleep(0.01)
        return False

    def follow(self, product_id: str, *, ahead: bool) -> None:
        self.followed.append(product_id)

    def n_failures(self, product_id: str) -> int:
        return 0


class ScriptedClient(MadeUpClient):
    """Hands out slot 0 for ever, or whatever `answers` says; records what it is asked."""

    opened: list["ScriptedClient"] = []  # noqa: RUF012, replaced for each test

    def __init__(
        self, endpoint: str, medium_cls: Any, slot_size: int, num_slots: int, **options: Any
    ) -> None:
        assert slot_size == CONFIG.nbytes()
        super().__init__(options)
        self.medium = SimpleNamespace(read=lambda slot_id: self.data)
        self.data = SAMPLE
        self.answers: Iterator[int | None] | None = None
        self.requests: list[tuple[str, int]] = []
        self.held: list[int] = []
        self.closed = self.n_numbered = 0
        self.opened.append(self)

    def request_sample(self, product_id: str, timeout_ms: int) -> int | None:
        self.requests.append((product_id, timeout_ms))
        slot_id = 0 if self.answers is None else next(self.answers)
        if slot_id is not None:
            self.held.append(slot_id)
        return slot_id

    def release_slot(self, slot_id: int) -> None:
        self.held.remove(slot_id)

    def diagnose(self, product_id: str, waited_s: float) -> NoSupplier:
        return NoSupplier(f"{product_id} {waited_s}")

    def close(self) -> None:
        self.closed += 1
