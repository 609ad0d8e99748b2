"""Messages between a master and its workers, and their bytes."""

from __future__ import annotations

from typing import Annotated

from ... import records
from ...errors import WireError
from ...records import Amount, Count, Packed, field, most, span
from ..master.rows.records import Name, Tags
from .columns import MOST_COLUMNS, MOST_ROWS, Columns
from .elements import ElementsRead, ReadElements
from .forms import HookForm, Slice, Text
from .layouts import KnownLayouts, State, StateForm

__all__ = [
    "MAX_BYTES",
    "AbortStep",
    "Columns",
    "Declared",
    "ElementsRead",
    "End",
    "Fetched",
    "Free",
    "HookForm",
    "Message",
    "ReadElements",
    "Ready",
    "Refused",
    "RunHook",
    "RunMain",
    "RunMove",
    "Slice",
    "State",
    "StepEnded",
    "decode",
    "encode",
]

#: Bytes of a message.
MAX_BYTES = 1 << 26

_Ids = Annotated[tuple[Count, ...], most(MOST_ROWS)]
_Names = Annotated[tuple[Name, ...], most(MOST_COLUMNS)]
_Texts = Annotated[dict[Count, Text], most(MOST_ROWS)]
_Number = Annotated[int, span(-1, 1 << 16)]


class RunMain(records.Message, tag=1):
    """To a worker: run a function on rows.

    Attributes:
        incarnation: Incarnation of the master.
        ticket: Place in the order.
        call: Number of the call.
        function: Number of the function in the declaration.
        ids: Ids of the rows.
        columns: Places of the values of each input, as many as ids.
        tags: Tags of each row.
        step: Step of the rows; see `Rows`, also for `use`, `ends_step` and `age`.
        part: Part of the call that is for this worker, if the role has several workers.
    """

    incarnation: Count
    ticket: Count
    call: Count
    function: Annotated[int, span(0, 1 << 16)]
    ids: _Ids
    columns: Columns
    tags: Annotated[tuple[Tags, ...], most(MOST_ROWS)]
    step: Count
    use: Count
    ends_step: bool
    age: Count
    part: Slice | None = None

    def __post_init__(self) -> None:
        _check_rows(self)
        n, part = len(self.ids), self.part
        if part is not None and (part.n_real not in (0, n) or part.n_rows < n):
            raise WireError(f"a RunMain has {n} ids, of which {part.n_real} are data in {part.n_rows} rows")
        if part is not None and len(part.longest) != len(self.columns):
            raise WireError(
                f"a RunMain has {len(self.columns)} columns and the longest values of {len(part.longest)}"
            )
        if len(self.tags) != n:
            raise WireError(f"a RunMain has {n} ids and tags of {len(self.tags)}")


class RunHook(records.Message, tag=2):
    """To a worker: run its part of a hook.

    Attributes:
        incarnation: Incarnation of the master.
        ticket: Place in the order.
        call: Number of the call.
        hook: Number of the hook in the declaration; -1: see `form`.
        form: Form of the hook, if it was posted.
        owner: Number of the role of the function; -1: no role.
        step: Number of the step, from 1; 0 if the hook was posted.
    """

    incarnation: Count
    ticket: Count
    call: Count
    hook: _Number
    form: HookForm | None
    owner: _Number
    step: Count


class RunMove(records.Message, tag=12):
    """To a worker: bring rows to its node. See `MoveWork`.

    Attributes:
        incarnation: Incarnation of the master.
        ticket: Place in the order.
        call: Number of the call.
        ids: Ids of the rows.
        names: Names of the columns.
        columns: Places of the values of each of these columns, as many as ids.
    """

    incarnation: Count
    ticket: Count
    call: Count
    ids: _Ids
    names: _Names
    columns: Columns

    def __post_init__(self) -> None:
        _check_rows(self)


class AbortStep(records.Message, tag=3):
    """To a worker: skip a step that waits; what a step that runs has done is dropped by the master."""

    incarnation: Count
    ticket: Count
    reason: Text


class Free(records.Message, tag=5):
    """To a worker: drop all that is held of rows."""

    ids: _Ids


class End(records.Message, tag=6):
    """To a worker: the flow has ended."""


class StepEnded(records.Message, tag=7):
    """To the master: a worker's part in a step has ended. See `Outcome`.

    Attributes:
        incarnation: Incarnation of the master.
        ticket: Ticket of the step.
        columns: Places of the values of each output, as many as ids.
        n_bytes: Bytes of these values.
        failure: Reason and text, if it failed.
        unread: Whether it failed because inputs could not be read, before the function was entered.
        began_s: Time at which it began, by the clock of the worker.
        read_s: Seconds that the reading of its inputs took.
        not_finite: Number of rows with a NaN or an infinity, by column.
    """

    incarnation: Count
    ticket: Count
    seconds: Amount = 0.0
    ids: _Ids = ()
    columns: Columns = Columns((), ())
    n_bytes: Count = 0
    numbers: Annotated[dict[Name, float], most(1 << 12)] = field(default_factory=dict)
    dropped: _Texts = field(default_factory=dict)
    failed: _Texts = field(default_factory=dict)
    tags: Annotated[dict[Count, Tags], most(MOST_ROWS)] = field(default_factory=dict)
    digest: Annotated[str, most(64)] = ""
    failure: tuple[Text, Text] | None = None
    unread: bool = False
    began_s: Amount = 0.0
    read_s: Amount = 0.0
    not_finite: Annotated[dict[Name, Count], most(1 << 12)] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_rows(self)


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
        meeting_port: Port of the master's TCPStore, by which workers make process groups; 0: the flow has no groups.
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
        incarnation: Incarnation of the master.
        ticket: Ticket of the step that reads the values.
        ids: Ids of the rows.
        names: Names of the columns.
        columns: Places here of the values of each of these columns, as many as ids.
    """

    incarnation: Count
    ticket: Count
    ids: _Ids
    names: _Names
    columns: Columns

    def __post_init__(self) -> None:
        _check_rows(self)


_Plain = (
    RunMain
    | RunHook
    | RunMove
    | AbortStep
    | Free
    | End
    | StepEnded
    | Ready
    | Declared
    | Refused
    | Fetched
    | ReadElements
    | ElementsRead
)
Message = _Plain | State

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
    if isinstance(made, RunMain | RunMove | StepEnded | Fetched | ElementsRead):
        _ = made.columns.places  # each is checked
    return made


def _check_rows(made: RunMain | RunMove | StepEnded | Fetched) -> None:
    """Columns have as many values as there are ids."""
    wrong = [len(column) for column in made.columns.rows if len(column) != len(made.ids)]
    if wrong:
        raise WireError(f"a {type(made).__name__} has {len(made.ids)} ids and a column of {wrong[0]} values")
    if isinstance(made, Fetched | RunMove) and len(made.names) != len(made.columns):
        raise WireError(
            f"a {type(made).__name__} has {len(made.names)} names and {len(made.columns)} columns"
        )
