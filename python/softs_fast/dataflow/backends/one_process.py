"""What a backend says of worker processes that does without them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..order.deadlines import Seen
from .sightings import Sight

__all__ = ["OneProcess"]


class OneProcess:
    """Part of a `Backend` of which all workers are in this process."""

    def free_bytes(self) -> None:
        """Values are in this process."""

    def look(self, ticket: int, workers: Iterable[int]) -> dict[int, Seen]:
        """There are no processes, and nothing here can end a function."""
        return {}

    def held_back(self) -> frozenset[int]:
        """All orders are there at once."""
        return frozenset()

    def sights(self, timeout_s: float, *, stacks: bool = False) -> dict[int, Sight]:
        """There are no worker processes."""
        return {}

    def inside(self) -> dict[int, dict[str, Any]]:
        """There are no worker processes."""
        return {}

    def end(self, worker: int, reason: str) -> None:
        """There are no processes."""
