"""Values arrive as they were sent, and any bytes are a value or a `WireError` that names the field."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softs_fast.errors import WireError
from softs_fast.records import (
    NO_NUL,
    Amount,
    Count,
    Finite,
    Json,
    Message,
    Packed,
    Record,
    checked,
    clip,
    field,
    most,
    replace,
    span,
)

Name = Annotated[str, most(8), NO_NUL]


class Row(Message):
    number: Count
    parts: Annotated[tuple[Name, ...], most(3)]


class Run(Message, tag=1):
    ids: Annotated[tuple[Count, ...], most(4)]
    rows: tuple[Row, ...] = ()
    tags: Annotated[dict[Name, int | float | bool | Name], most(2)] = field(default_factory=dict)
    failure: tuple[Name, Name] | None = None

    def __post_init__(self) -> None:
        if self.rows and len(self.rows) != len(self.ids):
            raise ValueError(f"{len(self.rows)} rows, expected {len(self.ids)}")


class End(Message, tag=2):
    after_s: Amount = 0.0


class Status(Record):
    state: Literal["open", "over"]
    loss: Finite | None = None
    share: Annotated[float, span(0.0, 1.0)] = 1.0
    key: Annotated[bytes, most(4, least=4)] = b"abcd"
    members: Annotated[tuple[Name, ...], most(2)] = ()


MESSAGES: Packed[Run | End] = Packed(Run | End, most_bytes=1 << 10, what="message")
STATUS: Json[Status] = Json(Status, most_bytes=1 << 10, what="status")
RUN = Run((1, 2), (Row(3, ("a", "b")), Row(4, ())), {"x": 1.5, "y": True}, ("why", "text"))


@pytest.mark.parametrize("message", [RUN, Run(()), End(2.5)], ids=str)
def test_a_message_arrives_as_it_was_sent(message: Run | End) -> None:
    data = MESSAGES.encode(checked(message))
    assert MESSAGES.decode(data) == message
    assert MESSAGES.decode(bytearray(data)) == message


def test_the_bytes_are_those_of_msgpack() -> None:
    plain = [1, [1, 2], [[3, ["a", "b"]], [4, []]], {"x": 1.5, "y": True}, ["why", "text"]]
    assert MESSAGES.encode(RUN) == msgpack.packb(plain)


def test_values_do_not_change() -> None:
    changed: Any = RUN
    with pytest.raises(AttributeError):
        changed.ids = ()
    assert replace(RUN, failure=None) == Run(RUN.ids, RUN.rows, RUN.tags)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ([1, [1, -2], [], {}, None], r"message \(\d+ bytes\): Run.ids\[1\]: Expected int >= 0"),
        ([1, [1 << 63], [], {}, None], r"Run.ids\[0\]: Expected int <= 9223372036854775807"),
        ([1, [True], [], {}, None], r"Run.ids\[0\]: Expected int, got bool"),
        ([1, [1.0], [], {}, None], r"Run.ids\[0\]: Expected int, got float"),
        ([1, [1], [[1, ["a", "x" * 9]]], {}, None], r"Run.rows\[0\].parts\[1\]: Expected str of length <= 8"),
        ([1, [1], [[1, ["a\0"]]], {}, None], r"Run.rows\[0\].parts\[0\]: Expected str matching regex"),
        ([1, [1], [[1]], {}, None], r"Run.rows\[0\]: Expected array of at least length 2, got 1"),
        ([1, [1], [], {"x": None}, None], r"Run.tags\[...\]: Expected bool \| int \| float \| str, got None"),
        ([1, [1], [], {1: 2}, None], r"Run.tags: Expected str, got int"),
        ([1, [1], [], dict.fromkeys("abc", 1), None], "Run.tags: Expected object of length <= 2"),
        ([1, [1], [], {}, ["one"]], "Run.failure: Expected array of length 2, got 1"),
        ([1, [1, 2], [[1, []]], {}, None], "Run: 1 rows, expected 2"),
        ([1, [0] * 5, [], {}, None], "Run.ids: Expected array of length <= 4"),
        ([1, [1], [], {}, None, 5], "Run: Expected array of at most length 4, got 5"),
        ([1, [1]], "message: a Run has 2 items; need 5"),
        ([2, math.nan], "End.after_s: Expected float"),
        ([2, math.inf], "End.after_s: Expected float"),
        ([3], "unknown kind 3; install the same version"),
        (["Run"], "unknown kind Run"),
        ([], "unknown kind None"),
        ({"type": 1}, "unknown kind None"),
    ],
)
def test_the_field_and_its_bound_are_named(values: object, complaint: str) -> None:
    with pytest.raises(WireError, match=complaint):
        MESSAGES.decode(msgpack.packb(values))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "cannot be read: Input data was truncated"),
        (b"\x93\x01", "cannot be read"),
        (msgpack.packb([2, 1.0]) + b"\0", "trailing characters"),
        (b"\x91" * 1000, "cannot be read"),
        (b"\x92\x02\xa1\xff", "cannot be read"),
        (bytes(1025), "message of 1,025 bytes; at most 1,024"),
    ],
)
def test_bytes_that_are_no_message_are_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(WireError, match=complaint):
        MESSAGES.decode(data)


def test_what_cannot_be_read_is_not_written() -> None:
    with pytest.raises(WireError, match=r"a Run cannot be sent: .*surrogates not allowed"):
        MESSAGES.encode(Run((), failure=("\ud800", "")))
    with pytest.raises(WireError, match="a Run cannot be sent"):
        MESSAGES.encode(Run((1 << 80,)))
    with pytest.raises(WireError, match=r"a Run has 1,2\d\d bytes; at most 1,024"):
        MESSAGES.encode(Run((), failure=("x" * 1200, "")))
    for wrong, complaint in (
        (Status("open", math.nan), "Status.loss: Expected float"),
        (Status("open", math.inf), "Status.loss: Expected float"),
        (Status("open", share=2.0), "Status.share: Expected float <= 1.0"),
        (Status("open", key=b"abc"), "Status.key: Expected bytes of length >= 4"),
        (Status("shut"), "Status.state: Invalid enum value 'shut'"),  # type: ignore[arg-type]
    ):
        with pytest.raises(WireError, match=complaint):
            STATUS.encode(wrong)
        with pytest.raises(WireError, match=complaint):
            checked(wrong)


def test_json_leaves_out_what_a_later_version_adds() -> None:
    assert STATUS.encode(Status("over", 0.5)) == (
        b'{"state":"over","loss":0.5,"share":1.0,"key":"YWJjZA==","members":[]}'
    )
    assert STATUS.decode(b'{"state": "over", "colour": [1]}') == Status("over")


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"[]", "Status: Expected object, got array"),
        (b"{}", "Status: Object missing required field state"),
        (b'{"state": "open", "loss": NaN}', "malformed"),
        (b'{"state": "open", "loss": 1e999}', "Status.loss: Number out of range"),
        (b'{"state": "open", "members": ["a", "\\ud800"]}', "Status: "),
        (b'{"state": "open", "members": ["a", "b\\u0000"]}', r"Status.members\[1\]: Expected str matching"),
        (b'{"state": "open", "members": ["a", "b", "c"]}', "Status.members: Expected array of length <= 2"),
        (b"[" * 1000, "Status: Expected object, got array"),
    ],
)
def test_json_that_is_no_status_is_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(WireError, match=complaint):
        STATUS.decode(data)


def test_texts_are_cut_and_written_whatever_they_hold() -> None:
    assert clip("as it is", 8) == "as it is"
    assert clip("too long by far", 8) == "too lon…"
    assert clip("a\ud800", 8) == "a\\ud800"
    assert clip("\ud800" * 100, 8) == "\\ud800\\…"


_PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=9)
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(values=st.lists(_PLAIN, max_size=6), tag=st.sampled_from([1, 2, 3, -1, "a"]))
def test_any_values_are_a_message_or_an_error(values: list[Any], tag: object) -> None:
    try:
        message = MESSAGES.decode(msgpack.packb([tag, *values]))
    except WireError:
        return
    assert MESSAGES.decode(MESSAGES.encode(checked(message))) == message


@given(
    changes=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), min_size=1, max_size=4),
    data=st.data(),
)
def test_changed_bytes_are_a_message_or_an_error(changes: list[tuple[int, int]], data: st.DataObject) -> None:
    changed = bytearray(MESSAGES.encode(RUN))
    for at, byte in changes:
        changed[at % len(changed)] = byte
    try:
        message = MESSAGES.decode(changed[: data.draw(st.integers(0, len(changed)))])
    except WireError:
        return
    assert type(message) in (Run, End)


@given(
    text=st.text() | st.binary().map(lambda one: one.decode("latin-1")), plain=_PLAIN.filter(lambda one: one)
)
def test_any_json_is_a_status_or_an_error(text: str, plain: object) -> None:
    loose = msgspec.json.encode(msgspec.to_builtins({"state": "open", "members": [text], "loss": str(plain)}))
    for data in (loose, text.encode(), b'{"state": "open", "loss": %s}' % text.encode()):
        try:
            status = STATUS.decode(data)
        except WireError:
            continue
        assert STATUS.decode(STATUS.encode(status)) == status
