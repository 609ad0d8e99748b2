"""Messages between a master and its workers, and their bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import msgpack

from ...errors import WireError
from ..moves.places import Place
from ..rows.records import Tag
from ..weights.shown import Shown
from .checks import (
    Check,
    boolean,
    integer,
    listing,
    number,
    optional,
    pair,
    places,
    seconds,
    table,
    tag,
    text,
    with_segments,
)
from .elements import LAYOUTS as ELEMENT_LAYOUTS
from .elements import ElementsRead, ReadElements, check_elements
from .forms import HookForm, SliceForm, checked_form, checked_slice
from .layouts import KnownLayouts, checked_shown, shown_as_wire, with_layout

__all__ = [
    "MAX_BYTES",
    "AbortStep",
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
    "SliceForm",
    "State",
    "StepEnded",
    "decode",
    "encode",
]

#: Bytes of a message.
MAX_BYTES = 1 << 26

_MOST_ROWS = 1 << 20
_MOST_TEXT = 1 << 17
_BIG = (1 << 63) - 1

Columns = tuple[tuple[Place, ...], ...]


@dataclass(frozen=True)
class RunMain:
    """To a worker: run a function on rows.

    Attributes:
        incarnation: of the master.
        ticket: place in the order.
        call: number of the call.
        function: its number in the declaration.
        ids: of the rows.
        columns: for each input the places of its values, as many as ids.
        tags: of each row.
        step: as in `Rows`, like the rest.
        part: what of the call it is, if the role has several workers.
    """

    incarnation: int
    ticket: int
    call: int
    function: int
    ids: tuple[int, ...]
    columns: Columns
    tags: tuple[dict[str, Tag], ...]
    step: int
    use: int
    ends_step: bool
    age: int
    part: SliceForm | None = None


@dataclass(frozen=True)
class RunHook:
    """To a worker: run its part of a hook.

    Attributes:
        incarnation: of the master.
        ticket: place in the order.
        call: number of the call.
        hook: its number in the declaration; -1: see `form`.
        form: what it is, if it was posted.
        owner: number of the role of the function; -1 if there is none.
        step: number of the step, from 1; 0 if it was posted.
    """

    incarnation: int
    ticket: int
    call: int
    hook: int
    form: HookForm | None
    owner: int
    step: int


@dataclass(frozen=True)
class RunMove:
    """To a worker: bring rows to where it reads them. See `MoveWork`.

    Attributes:
        incarnation: of the master.
        ticket: place in the order.
        call: number of the call.
        ids: of the rows.
        names: of the columns.
        columns: for each of them the places of its values, as many as ids.
        keeps: whether the main part of the call takes the values.
        is_needed: whether a value that cannot be read is an error.
    """

    incarnation: int
    ticket: int
    call: int
    ids: tuple[int, ...]
    names: tuple[str, ...]
    columns: Columns
    keeps: bool
    is_needed: bool


@dataclass(frozen=True)
class AbortStep:
    """To a worker: skip a step that waits; what a step that runs has done is dropped by the master."""

    incarnation: int
    ticket: int
    reason: str


@dataclass(frozen=True)
class State:
    """To the master, from inside of a hook: what a worker shows of the weights of a source. It passes that on to the
    workers that are inside of the hook, or get there.

    Attributes:
        incarnation: of the master.
        ticket: of the hook.
        shown: regions of tensors, and where they are.
        near: where they are that is nearer to the worker that gets this; None: nowhere.
    """

    incarnation: int
    ticket: int
    shown: Shown
    near: Place | None = None


@dataclass(frozen=True)
class Free:
    """To a worker: drop all that is held of rows."""

    ids: tuple[int, ...]


@dataclass(frozen=True)
class End:
    """To a worker: the flow has ended."""


@dataclass(frozen=True)
class StepEnded:
    """To the master: a worker's part in a step has ended. See `Outcome`.

    Attributes:
        incarnation: of the master.
        ticket: of the step.
        columns: for each output the places of its values, as many as ids.
        n_bytes: of these values.
        failure: reason and text, if it failed.
        unread: whether it failed because inputs could not be read, before the function was entered.
        began_s: when it began, by the clock of the worker.
        read_s: how long its inputs took to be read.
        not_finite: rows with a NaN or an infinity, by column.
    """

    incarnation: int
    ticket: int
    seconds: float = 0.0
    ids: tuple[int, ...] = ()
    columns: Columns = ()
    n_bytes: int = 0
    numbers: dict[str, float] = field(default_factory=dict)
    dropped: dict[int, str] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    tags: dict[int, dict[str, Tag]] = field(default_factory=dict)
    digest: str = ""
    failure: tuple[str, str] | None = None
    unread: bool = False
    began_s: float = 0.0
    read_s: float = 0.0
    not_finite: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Ready:
    """To the master: a worker has made the objects of its roles.

    Attributes:
        node: what workers have in common that can open each other's shared memory; empty if all of the flow can.
        free_bytes: of shared memory there; 0 where the master sees it, too.
    """

    node: str = ""
    free_bytes: int = 0


@dataclass(frozen=True)
class Declared:
    """To a worker that was started by hand: the lines of the flow that the master has.

    Attributes:
        lines: of its declaration.
        meeting_port: of the master's TCPStore, by which workers make process groups; 0 if there are none.
        host: at which the master listens, as its user has said.
    """

    lines: tuple[str, ...]
    meeting_port: int = 0
    host: str = "127.0.0.1"


@dataclass(frozen=True)
class Refused:
    """A worker that was started by hand cannot take part: it tells the master, or the master tells it."""

    reason: str


@dataclass(frozen=True)
class Fetched:
    """To the master: a worker has got values from another node, and keeps them.

    Attributes:
        incarnation: of the master.
        ticket: of the step that reads them.
        ids: of the rows.
        names: of the columns.
        columns: for each of them the places here, as many as ids.
    """

    incarnation: int
    ticket: int
    ids: tuple[int, ...]
    names: tuple[str, ...]
    columns: Columns


Message = (
    RunMain
    | RunHook
    | RunMove
    | AbortStep
    | State
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

_ID = integer(0, _BIG)
_IDS = listing(_ID, _MOST_ROWS)
_TEXT = text(_MOST_TEXT)
_NAME = text(1 << 10)
_TAGS = table(_NAME, tag, 1 << 10)


def _place(name: str, value: Any) -> Place:
    columns = places(name, value)
    if len(columns) != 1 or len(columns[0]) != 1:
        raise WireError(f"{name} has {len(columns)} columns of places; need one place")
    return columns[0][0]


#: Of each message its number and the checks of its fields, in their order.
_LAYOUTS: dict[type, tuple[int, tuple[Check, ...]]] = {
    RunMain: (
        1,
        (
            *(_ID, _ID, _ID, integer(0, 1 << 16)),
            *(_IDS, places, listing(_TAGS, _MOST_ROWS)),
            *(_ID, _ID, boolean, _ID),
            optional(checked_slice),
        ),
    ),
    RunHook: (
        2,
        (
            *(_ID, _ID, _ID),
            *(integer(-1, 1 << 16), optional(checked_form), integer(-1, 1 << 16), _ID),
        ),
    ),
    AbortStep: (3, (_ID, _ID, _TEXT)),
    State: (4, (_ID, _ID, checked_shown, optional(_place))),
    Free: (5, (_IDS,)),
    End: (6, ()),
    StepEnded: (
        7,
        (
            *(_ID, _ID, seconds, _IDS, places, _ID),
            table(_NAME, number, 1 << 12),
            table(_ID, _TEXT, _MOST_ROWS),
            table(_ID, _TEXT, _MOST_ROWS),
            table(_ID, _TAGS, _MOST_ROWS),
            text(64),
            optional(pair(_TEXT, _TEXT)),
            boolean,
            seconds,
            seconds,
            table(_NAME, _ID, 1 << 12),
        ),
    ),
    Ready: (8, (_NAME, _ID)),
    RunMove: (12, (_ID, _ID, _ID, _IDS, listing(_NAME, 1 << 12), places, boolean, boolean)),
    # Numbers from 20 on: between hosts.
    Declared: (20, (listing(text(1 << 14), 1 << 16), integer(0, (1 << 16) - 1), text(256))),
    Refused: (21, (_TEXT,)),
    Fetched: (22, (_ID, _ID, _IDS, listing(_NAME, 1 << 12), places)),
    **ELEMENT_LAYOUTS,
}
#: Of each number the kind, and of its fields the names in errors and the checks.
_KINDS = {
    number: (
        kind,
        tuple(
            (f"{kind.__name__}: {one.name}", check) for one, check in zip(fields(kind), checks, strict=True)
        ),
    )
    for kind, (number, checks) in _LAYOUTS.items()
}
_NAMES = {kind: tuple(one.name for one in fields(kind)) for kind in _LAYOUTS}
#: Fields that are no plain types.
_AS_WIRE: dict[str, Callable[[Any, KnownLayouts | None], Any]] = {
    "columns": lambda columns, known: with_segments(columns),
    "form": lambda form, known: list(vars(form).values()),
    "near": lambda place, known: with_segments(((place,),)),
    "part": lambda part, known: list(vars(part).values()),
    "shown": shown_as_wire,
}
_COUNTED = (RunMain, RunMove, StepEnded, Fetched, ReadElements, ElementsRead)


def encode(message: Message, known: KnownLayouts | None = None) -> bytes:
    """Return the bytes of a message.

    Args:
        message: any.
        known: what was sent on the same connection; a layout that is there is not sent again. None: all is sent.

    Raises:
        WireError: it is too long, or has a number that messages do not have.
    """
    values: list[Any] = [_LAYOUTS[type(message)][0]]
    for name in _NAMES[type(message)]:
        value, as_wire = getattr(message, name), _AS_WIRE.get(name)
        values.append(value if as_wire is None or value is None else as_wire(value, known))
    try:
        data: bytes = msgpack.packb(values, unicode_errors="surrogatepass")
    except (TypeError, OverflowError, ValueError) as error:
        raise WireError(f"a {type(message).__name__} cannot be sent: {error}") from None
    if len(data) > MAX_BYTES:
        raise WireError(f"a {type(message).__name__} has {len(data)} bytes; at most {MAX_BYTES}")
    if known is not None and isinstance(message, State):
        known.note(message.shown.layout)
    return data


def decode(data: bytes, known: KnownLayouts | None = None) -> Message:
    """Return the message of bytes.

    Args:
        data: what `encode` made.
        known: what was received on the same connection. None: messages have all.

    Raises:
        WireError: they are no message, or a field is none that it can have.
    """
    if len(data) > MAX_BYTES:
        raise WireError(f"a message has {len(data)} bytes; at most {MAX_BYTES}")
    try:
        values = msgpack.unpackb(data, strict_map_key=False, unicode_errors="surrogatepass")
    except (TypeError, ValueError, msgpack.UnpackException, RecursionError) as error:
        raise WireError(f"{len(data)} bytes are no message: {error}") from None
    if type(values) is not list or not values or type(values[0]) is not int or values[0] not in _KINDS:
        raise WireError(f"{len(data)} bytes are no message of a flow")
    kind, checks = _KINDS[values[0]]
    if len(values) != len(checks) + 1:
        raise WireError(f"a {kind.__name__} has {len(values) - 1} fields; need {len(checks)}")
    if kind is State:
        values[3] = with_layout(values[3], known)
    try:
        made = kind(*(check(name, value) for (name, check), value in zip(checks, values[1:], strict=True)))
    except RecursionError:  # of `repr`, for a text that says what is wrong
        raise WireError(f"a {kind.__name__} has lists within lists that are too deep") from None
    if kind in _COUNTED:
        _check_counts(made)
    if known is not None and isinstance(made, State):
        known.note(made.shown.layout)
    return made  # type: ignore[no-any-return]


def _check_counts(made: RunMain | RunMove | StepEnded | Fetched | Any) -> None:
    """Columns have as many values as there are ids."""
    if isinstance(made, ReadElements | ElementsRead):
        check_elements(made)
    if isinstance(made, RunMain | RunMove | StepEnded | Fetched):
        wrong = [len(column) for column in made.columns if len(column) != len(made.ids)]
        if wrong:
            raise WireError(
                f"a {type(made).__name__} has {len(made.ids)} ids and a column of {wrong[0]} values"
            )
    if isinstance(made, Fetched | RunMove) and len(made.names) != len(made.columns):
        raise WireError(
            f"a {type(made).__name__} has {len(made.names)} names and {len(made.columns)} columns"
        )
    if isinstance(made, RunMain) and made.part is not None:
        part = made.part
        if part.n_real not in (0, len(made.ids)) or part.n_rows < len(made.ids):
            raise WireError(
                f"a RunMain has {len(made.ids)} ids, of which {part.n_real} are data in {part.n_rows} rows"
            )
        if len(part.longest) != len(made.columns):
            raise WireError(
                f"a RunMain has {len(made.columns)} columns and the longest values of {len(part.longest)}"
            )
    if isinstance(made, RunMain) and len(made.tags) != len(made.ids):
        raise WireError(f"a RunMain has {len(made.ids)} ids and tags of {len(made.tags)}")
