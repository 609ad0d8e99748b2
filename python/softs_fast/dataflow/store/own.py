"""Values of rows in the process that uses them: the place of a value is the value itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .values import Value

__all__ = ["OwnValues"]


class OwnValues:
    """What `DataManager` is where all workers are in one process.

    Attributes:
        worker: Number of the worker for which a step runs.
    """

    worker = 0

    def put(self, column: str, ids: Sequence[int], values: Sequence[Value]) -> Sequence[Value]:
        """Return the values: they are here."""
        return values

    def get(self, places: Sequence[Any]) -> list[Value]:
        """Copy values: what is changed in a copy is not seen by others, as with workers in other processes."""
        return [_copy(value) for value in places]

    def drop(self, column: str, ids: Sequence[int]) -> None:
        """Values go with their last place."""


def _copy(value: Value) -> Value:
    if isinstance(value, Tensor):
        return value.clone()
    return [one.clone() for one in value] if isinstance(value, list) else value
