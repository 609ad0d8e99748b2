"""Numbers of elements, and what a shard has of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..rows.records import Tag

__all__ = ["Arrived", "element_id", "number_of", "source_of"]

#: Ids by which stores keep values of elements begin here. No row has them, nor have weights of hooks (from 2^62 on).
_FIRST = 1 << 61
#: Elements of a shard.
_MOST = 1 << 48


def element_id(source: int, number: int) -> int:
    """Return the id by which the store of a head keeps an element of its shard.

    Args:
        source: number of the dataset in the declaration, below 2^12.
        number: of the element in the shard, below 2^48.
    """
    return _FIRST + source * _MOST + number


def number_of(element: int) -> int:
    """Return the number that an element has in its shard, by its id."""
    return element % _MOST


def source_of(element: int) -> int:
    """Return the number of the dataset that an element is of, by its id."""
    return (element - _FIRST) // _MOST


@dataclass(frozen=True)
class Arrived:
    """What the master knows of an element that was read.

    Attributes:
        columns: for each column of the dataset the place of its value.
        n_bytes: of these values.
        tags: small values.
    """

    columns: tuple[Any, ...]
    n_bytes: int
    tags: dict[str, Tag]
