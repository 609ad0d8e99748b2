"""Messages between a master and the heads of dp ranks about elements of datasets; `messages` has them among the others."""

from __future__ import annotations

from typing import Annotated

from ...errors import WireError
from ...records import Count, Message, most, span
from ..master.rows.records import Tags
from .columns import Columns
from .results import Failure

__all__ = ["MOST_ELEMENTS", "ElementsRead", "ReadElements"]

#: Elements of one request.
MOST_ELEMENTS = 1 << 10

_Number = Annotated[int, span(0, (1 << 48) - 1)]


class ReadElements(Message, tag=30):
    """To the head of a dp rank: read elements of its shard, and keep them.

    Attributes:
        request: Number of the request; the answer has it.
        source: Number of the dataset in the declaration.
        numbers: Numbers of the elements in the shard; they grow.

    Raises:
        WireError: the numbers do not grow.
    """

    request: Count
    source: Annotated[int, span(0, (1 << 12) - 1)]
    numbers: Annotated[tuple[_Number, ...], most(MOST_ELEMENTS, least=1)]

    def __post_init__(self) -> None:
        if any(one >= after for one, after in zip(self.numbers, self.numbers[1:], strict=False)):
            raise WireError(f"a ReadElements has numbers {self.numbers[:8]}; need numbers that grow")


class ElementsRead(Message, tag=31):
    """To the master: the first elements of a request were read, all of them if neither the end nor an error was met.

    Attributes:
        request: Number of the request that this answers.
        columns: Places of the values of each column of the dataset, one for each element.
        sizes: Bytes of each element.
        tags: Tags of each element.
        length: Number of elements of the shard, if its end was met.
        failure: Reason why the next element cannot be read; None if nothing failed.

    Raises:
        WireError: columns, sizes and tags are of different numbers of elements.
    """

    request: Count
    columns: Columns
    sizes: Annotated[tuple[Count, ...], most(MOST_ELEMENTS)] = ()
    tags: Annotated[tuple[Tags, ...], most(MOST_ELEMENTS)] = ()
    length: _Number | None = None
    failure: Failure | None = None

    def __post_init__(self) -> None:
        wrong = [n for n in (*self.columns.lengths(), len(self.tags)) if n != len(self.sizes)]
        if wrong:
            raise WireError(
                f"an ElementsRead has sizes of {len(self.sizes)} elements, and a column or tags of {wrong[0]}"
            )
