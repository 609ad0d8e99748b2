"""A reader that gives the items of another one to a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..sample_iterator import Reader

__all__ = ["MappedReader"]


class MappedReader:
    """Hands out what a function makes of the items of another reader.

    Args:
        reader: makes the items; owned by this one.
        function: called with each item when it is handed out.
    """

    def __init__(self, reader: Reader, function: Callable[[Any], Any]) -> None:
        self.n_rows = reader.n_rows
        self.begin, self.forget, self.fill = reader.begin, reader.forget, reader.fill
        self._reader = reader
        self._function = function

    @property
    def is_starved(self) -> bool:
        """Whether nothing can come because the user holds all slots."""
        return self._reader.is_starved

    def take(self) -> Any:
        """Hand out what the function makes of the item."""
        return self._function(self._reader.take())
