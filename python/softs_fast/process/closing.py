"""Handles that the end of a block closes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

__all__ = ["Closing"]


class Closing(ABC):
    """A handle for `with` blocks."""

    @abstractmethod
    def close(self) -> None:
        """Release what it has; a second call does nothing."""

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close it."""
        self.close()
