"""Messages between a master and the heads of dp ranks about elements of datasets; `messages` has them among the others."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import WireError
from ..moves.places import Place
from ..rows.records import Tag
from .checks import Check, integer, listing, optional, pair, places, table, tag, text

__all__ = ["LAYOUTS", "MOST_ELEMENTS", "ElementsRead", "ReadElements", "check_elements"]

#: Elements of one request.
MOST_ELEMENTS = 1 << 10


@dataclass(frozen=True)
class ReadElements:
    """To the head of a dp rank: read elements of its shard, and keep them.

    Attributes:
        request: its number; the answer has it.
        source: number of the dataset in the declaration.
        numbers: of the elements in the shard; they grow.
    """

    request: int
    source: int
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class ElementsRead:
    """To the master: the first elements of a request were read, all of them if neither the end nor an error was met.

    Attributes:
        request: of which it is the answer.
        columns: for each column of the dataset the places of its values, one for each element.
        sizes: bytes of each element.
        tags: of each element.
        length: elements of the shard, if its end was met.
        failure: reason and text, if the next element cannot be read.
    """

    request: int
    columns: tuple[tuple[Place, ...], ...]
    sizes: tuple[int, ...] = ()
    tags: tuple[dict[str, Tag], ...] = ()
    length: int | None = None
    failure: tuple[str, str] | None = None


_BIG = (1 << 63) - 1
_ID = integer(0, _BIG)
_NUMBER = integer(0, (1 << 48) - 1)
_TEXT = text(1 << 17)
_TAGS = table(text(1 << 10), tag, 1 << 10)

#: As in `messages`.
LAYOUTS: dict[type, tuple[int, tuple[Check, ...]]] = {
    ReadElements: (30, (_ID, integer(0, (1 << 12) - 1), listing(_NUMBER, MOST_ELEMENTS))),
    ElementsRead: (
        31,
        (
            *(_ID, places, listing(_ID, MOST_ELEMENTS), listing(_TAGS, MOST_ELEMENTS)),
            optional(_NUMBER),
            optional(pair(_TEXT, _TEXT)),
        ),
    ),
}


def check_elements(made: ReadElements | ElementsRead) -> None:
    """Check what no field says alone.

    Raises:
        WireError: numbers do not grow, or columns, sizes and tags are of different numbers of elements.
    """
    if isinstance(made, ReadElements):
        if not made.numbers or any(
            one >= after for one, after in zip(made.numbers, made.numbers[1:], strict=False)
        ):
            raise WireError(f"a ReadElements has numbers {made.numbers[:8]}; need numbers that grow")
        return
    wrong = [len(column) for column in (*made.columns, made.tags) if len(column) != len(made.sizes)]
    if wrong:
        raise WireError(
            f"an ElementsRead has sizes of {len(made.sizes)} elements, and a column or tags of {wrong[0]}"
        )
