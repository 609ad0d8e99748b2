"""What the master knows of elements of shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..rows.records import Tag

__all__ = ["Arrived"]


@dataclass(frozen=True)
class Arrived:
    """What the master knows of an element that was read.

    Attributes:
        columns: Place of the value, for each column of the dataset.
        n_bytes: Bytes of these values.
        tags: Small values.
    """

    columns: tuple[Any, ...]
    n_bytes: int
    tags: dict[str, Tag]
