"""Messages between a master and its workers, and their bytes."""

from __future__ import annotations

from typing import Annotated

from ... import records
from ...records import Count, Packed, most, span
from ..master.order.steps import Abort
from ..master.rows.records import Name, Text
from .columns import MOST_ROWS, Columns
from .elements import ElementsRead, ReadElements
from .layouts import KnownLayouts, State, StateForm
from .results import Failure, Result
from .tasks import HookForm, HookTask, MainTask, MoveTask, Slice, Task, check_rows

__all__ = [
    "MAX_BYTES",
    "Abort",
    "Columns",
    "Declared",
    "ElementsRead",
    "End",
    "Failure",
    "Fetched",
    "Free",
    "HookForm",
    "HookTask",
    "MainTask",
    "Message",
    "MoveTask",
    "ReadElements",
    "Ready",
    "Refused",
    "Result",
    "Slice",
    "State",
    "Task",
    "decode",
    "encode",
]

#: Bytes of a message.
MAX_BYTES = 1 << 26


class Free(records.Message, tag=5):
    """To a worker: drop all that is held of rows."""

    ids: Annotated[tuple[Count, ...], most(MOST_ROWS)]


class End(records.Message, tag=6):
    """To a worker: the flow has ended."""


class Ready(records.Message, tag=8):
    """To the master: a worker has made the objects of its roles.

    Attributes:
        node: Name that is the same on workers that can open each other's shared memory; empty if all of the flow can.
        free_bytes: Bytes that are free in shared memory there; 0 where the master sees it, too.
    """

    node: Name = ""
    free_bytes: Count = 0


class Declared(records.Message, tag=20):
    """To a worker that was started by hand: the lines of the flow that the master has.

    Attributes:
        lines: Lines of the flow's declaration.
        meeting_port: Port of the master's store, by which workers make process groups; 0: the flow has no groups.
        host: Host at which the master listens, as its user has said.
    """

    lines: Annotated[tuple[Annotated[str, most(1 << 14)], ...], most(1 << 16)]
    meeting_port: Annotated[int, span(0, (1 << 16) - 1)] = 0
    host: Annotated[str, most(256)] = "127.0.0.1"


class Refused(records.Message, tag=21):
    """A worker that was started by hand cannot take part: it tells the master, or the master tells it."""

    reason: Text


class Fetched(records.Message, tag=22):
    """To the master: a worker has got values from another node, and keeps them.

    Attributes:
        ticket: Ticket of the step that reads the values.
        ids: Ids of the rows.
        columns: Places here of the values of each column, as many as ids.
    """

    ticket: Count
    ids: Annotated[tuple[Count, ...], most(MOST_ROWS)]
    columns: Columns

    def __post_init__(self) -> None:
        check_rows(self, self.ids, self.columns)


_Plain = (
    Task | Abort | Free | End | Result | Ready | Declared | Refused | Fetched | ReadElements | ElementsRead
)
Message = _Plain | State
#: Those that name places.
_Placed = MainTask | MoveTask | Result | Fetched | ElementsRead

_PACKED: Packed[_Plain | StateForm] = Packed(
    _Plain | StateForm, most_bytes=MAX_BYTES, what="message of a flow"
)


def encode(message: Message, known: KnownLayouts | None = None) -> bytes:
    """Return the bytes of a message.

    Args:
        message: Message of any type.
        known: Layouts that were sent on the same connection; they are not sent again. None: all is sent.

    Raises:
        WireError: it is too long, or has a number that messages do not have.
    """
    if not isinstance(message, State):
        if isinstance(message, _Placed):
            message = records.replace(message, columns=message.columns.packed())
        return _PACKED.encode(message)
    data = _PACKED.encode(StateForm.of(message, known))
    if known is not None:
        known.note(message.shown.layout)
    return data


def decode(data: bytes, known: KnownLayouts | None = None) -> Message:
    """Return the message of bytes.

    Args:
        data: Bytes that `encode` made.
        known: Layouts that were received on the same connection. None: messages have all.

    Raises:
        WireError: they are no message, or a field is none that it can have.
    """
    made = _PACKED.decode(data)
    if isinstance(made, StateForm):
        state = made.state(known)
        if known is not None:
            known.note(state.shown.layout)
        return state
    if isinstance(made, _Placed):
        _ = made.columns.places  # each is checked
    return made
