"""Ids by which stores keep values, each kind in a range of its own: what is freed of one kind is none of another."""

from __future__ import annotations

from ...errors import FlowError

__all__ = [
    "ELEMENTS",
    "HOOKS",
    "ROWS",
    "element_id",
    "number_of",
    "source_of",
    "state_id",
]

#: Datasets of a flow, and elements of a shard.
_MOST_SOURCES, _MOST_NUMBERS = 1 << 12, 1 << 48

#: Of rows: the master counts them.
ROWS = range(1 << 61)
#: Of elements of datasets.
ELEMENTS = range(ROWS.stop, ROWS.stop + _MOST_SOURCES * _MOST_NUMBERS)
#: Of weights that hooks show. Messages have no larger numbers.
HOOKS = range(1 << 62, 1 << 63)


def element_id(source: int, number: int) -> int:
    """Return the id by which the store of a head keeps an element of its shard.

    Args:
        source: Number of the dataset in the declaration, below 2^12.
        number: Number of the element in the shard, below 2^48.

    Raises:
        FlowError: one of them is out of range.
    """
    _check("dataset", source, _MOST_SOURCES)
    _check("element", number, _MOST_NUMBERS)
    return ELEMENTS.start + source * _MOST_NUMBERS + number


def number_of(element: int) -> int:
    """Return the number that an element has in its shard, by its id."""
    return element % _MOST_NUMBERS


def source_of(element: int) -> int:
    """Return the number of the dataset that an element is of, by its id."""
    return (element - ELEMENTS.start) // _MOST_NUMBERS


def state_id(ticket: int) -> int:
    """Return the id by which weights of a hook are kept.

    Raises:
        FlowError: the number is out of range.
    """
    _check("ticket", ticket, HOOKS.stop - HOOKS.start)
    return HOOKS.start + ticket


def _check(what: str, number: int, most: int) -> None:
    if not 0 <= number < most:
        raise FlowError(f"{what} {number} has no id in stores; need a number from 0 to {most - 1}")
