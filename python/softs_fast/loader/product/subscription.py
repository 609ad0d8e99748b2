"""Keeps a client at the product that is wanted, in whatever thread notices first that it is another one."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Protocol

from torch.utils.data import get_worker_info

from ...market import Client
from ...market.client import LeaveAfter
from ..fork_locks import renewed_in_forks

__all__ = ["MAX_PRODUCTS", "Course", "Plan", "WantedProduct"]

#: So many products have a position; the one that was left longest ago goes first.
MAX_PRODUCTS = 64


class WantedProduct(Protocol):
    """Names the product that is wanted now; it may change at any time."""

    def read(self) -> str:
        """Return the product."""

    def sleep_while(self, product: str, leave_after: LeaveAfter) -> None:
        """Sleep while it is this one and nobody calls `wake`; may come back early.

        Args:
            product: which one.
            leave_after: sleeps while this memory begins with this word; if it does not then, has the client leave the product.
        """

    def wake(self) -> None:
        """Wake all who sleep, in whatever process."""


@dataclass(frozen=True)
class Plan:
    """Which samples of an ordered stream are this process's: i has the number start + i // run * stride + i % run."""

    start: int = 0
    run: int = 1
    stride: int = 1

    @classmethod
    def of_this_worker(cls, batch_size: int) -> Plan:
        """Return the plan with which workers of a DataLoader take turns, batch by batch; all, where there are none."""
        worker = get_worker_info()
        if worker is None:
            return cls()
        return cls(worker.id * batch_size, batch_size, worker.num_workers * batch_size)


class Course:
    """What a client orders; shared by its iterators and by whoever sets the model.

    Args:
        client: who orders.
        model: names the product that is wanted.
    """

    def __init__(self, client: Client, model: WantedProduct) -> None:
        self._client = client
        self._model = model
        # Those of the iterator that entered a product last.
        self._positions: dict[str, int] = {}
        self._plan: Plan | None = None
        self._product: str | None = None
        # The product is read with it in hand, so whoever comes last follows the newest.
        self._lock: threading.Lock
        renewed_in_forks(self, "_lock")

    def change(self) -> None:
        """Have the client order the product that is wanted now, and end the waits for another one."""
        with self._lock:
            product = self._model.read()
            if product != self._product:
                self._follow(product, ahead=self._is_in_place(product))

    def sleep_while(self, product: str) -> None:
        """Sleep while this product is wanted and nobody wakes us; may come back early.

        If another one is wanted then, nobody orders this one any more, even before the interpreter is free for us; `change` must follow.
        """
        self._model.sleep_while(product, self._leave_after)

    def _leave_after(self, product: str, memory: Any, word: int) -> bool:
        is_left = self._client.leave_after(product, memory, word)
        if is_left:
            # Nothing is ordered until a product is followed, even if the same one is wanted again by now.
            with self._lock:
                self._product = None
        return is_left

    def enter(self, positions: dict[str, int], plan: Plan | None) -> str:
        """Take the product that is wanted now up where it was left, for an iterator that has nothing of it in hand.

        Args:
            positions: how many samples of each product were handed out; the iterator keeps it up to date.
            plan: which samples to ask for, if the client hands them out in order.

        Returns:
            The product.
        """
        with self._lock:
            product = self._model.read()
            self._positions, self._plan = positions, plan
            positions[product] = positions.pop(product, 0)
            while len(positions) > MAX_PRODUCTS:
                del positions[next(iter(positions))]
            if plan is not None and not self._is_in_place(product):
                self._client.seek(product, plan.start, plan.run, plan.stride, positions[product])
            if product != self._product:
                self._follow(product, ahead=True)
            return product

    def _follow(self, product: str, *, ahead: bool) -> None:
        self._client.follow(product, ahead=ahead)
        self._product = product

    def _is_in_place(self, product: str) -> bool:
        """Return whether the next sample of a product that the client would order is the one that is due."""
        if self._plan is None:
            return True
        return self._plan == Plan() and self._client.position(product) == self._positions.get(product, 0)
