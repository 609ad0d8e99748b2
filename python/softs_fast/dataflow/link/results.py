"""What a worker's part in a step has done."""

from __future__ import annotations

from typing import Annotated

from ...records import Amount, Count, Message, field, most
from ...user_code import reason_of_error, text_of_error, trace_of_error
from ..master.rows.records import Name, Tags, Text
from .columns import MOST_ROWS, Columns
from .tasks import check_rows

__all__ = ["Failure", "Result"]

_Texts = Annotated[dict[Count, Text], most(MOST_ROWS)]


class Failure(Message):
    """Why a step failed.

    Attributes:
        reason: Text of the exception, or its type.
        text: Type, text and traceback.
    """

    reason: Text
    text: Text

    @classmethod
    def of(cls, error: BaseException, where: str = "") -> Failure:
        """Return what is said of an exception; at most 100,000 characters, and the words that say where it was."""
        return cls(reason_of_error(error), f"{where}{text_of_error(error)}\n{trace_of_error(error)}")


class Result(Message, tag=7):
    """To the master: a worker's part in a step has ended, well or not.

    Attributes:
        ticket: Ticket of the step.
        seconds: Seconds that the part took.
        ids: Ids of the rows on which a function was called.
        columns: Places of the values of each output, as many as ids.
        n_bytes: Bytes of these values.
        numbers: Numbers that a function returned beside columns, or that an evaluation returned.
        dropped: Reasons why rows were dropped, by id.
        failed: Reasons why rows could not be made, by id.
        tags: Tags of rows that have some, by id.
        digest: Digest of ids and inputs; empty if none is taken.
        failure: Failure of the part; None if it is done.
        unread: Whether it failed because inputs could not be read, before the function was entered.
        began_s: Time at which it began, by `time.monotonic` of its process; 0 if it did not.
        read_s: Seconds that the reading of the inputs took, before `seconds`; they are read first.
        not_finite: Rows with a NaN or an infinity among the inputs of a training function, by column.
    """

    ticket: Count
    seconds: Amount = 0.0
    ids: Annotated[tuple[Count, ...], most(MOST_ROWS)] = ()
    columns: Columns = Columns((), (), ())
    n_bytes: Count = 0
    numbers: Annotated[dict[Name, float], most(1 << 12)] = field(default_factory=dict)
    dropped: _Texts = field(default_factory=dict)
    failed: _Texts = field(default_factory=dict)
    tags: Annotated[dict[Count, Tags], most(MOST_ROWS)] = field(default_factory=dict)
    digest: Annotated[str, most(64)] = ""
    failure: Failure | None = None
    unread: bool = False
    began_s: Amount = 0.0
    read_s: Amount = 0.0
    not_finite: Annotated[dict[Name, Count], most(1 << 12)] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_rows(self, self.ids, self.columns)
