"""Records as protobuf: every type of a field, bounds both ways, and any bytes are a record or a `WireError`."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("google.protobuf", reason="needs the extra grpc")
from softs_fast.errors import WireError
from softs_fast.records import CUT, U32, Count, Finite, Proto, Record, Tag64, as_number, most, schema, span

Colour = Literal["red", "green"]
I64 = Annotated[int, span(-(1 << 63), (1 << 63) - 1)]


class Part(Record):
    """A part."""

    number: Count
    why: Annotated[str, most(4), CUT] = ""


class Whole(Record):
    """All types."""

    tag: Tag64 = 0
    rank: U32 | None = None
    signed: Annotated[I64, as_number("int64")] = 0
    zigzag: Annotated[I64, as_number("sint64")] = 0
    small: Annotated[int, span(-(1 << 31), (1 << 31) - 1), as_number("int32")] = 0
    random: Annotated[Tag64, as_number("uint64")] = 0
    share: Finite = 0.0
    is_on: bool = False
    name: Annotated[str, most(4)] = ""
    data: Annotated[bytes, most(4)] = b""
    colour: Colour = "red"
    maybe: Colour | None = None
    part: Part = Part(0)
    other: Part | None = None
    parts: Annotated[tuple[Part, ...], most(3)] = ()
    ranks: Annotated[tuple[U32, ...], most(3)] = ()
    names: Annotated[tuple[Annotated[str, most(2)], ...], most(3)] = ()


FORMAT: Proto[Whole | Part] = Proto(Whole | Part, most_bytes=1 << 10, what="Any")
ONE: Proto[Part] = Proto(Part, most_bytes=1 << 10, what="Part")
i64, i32 = st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-(1 << 31), (1 << 31) - 1)
u64, u32 = st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 32) - 1)
texts = st.text(max_size=2)
colours: st.SearchStrategy[Colour] = st.sampled_from(["red", "green"])
parts = st.builds(Part, st.integers(0, (1 << 63) - 1), texts)
wholes = st.builds(
    Whole,
    *(u64, st.none() | u32, i64, i64, i32, u64, st.floats(allow_nan=False, allow_infinity=False)),
    *(st.booleans(), texts, st.binary(max_size=4), colours, st.none() | colours, parts, st.none() | parts),
    *(st.lists(one, max_size=3).map(tuple) for one in (parts, u32, texts)),
)


@given(value=wholes | parts)
def test_records_arrive_as_they_were(value: Whole | Part) -> None:
    assert FORMAT.decode(FORMAT.encode(value)) == value


def test_what_is_absent_is_0_empty_or_none() -> None:
    assert FORMAT.decode(b"\x12\x00") == Part(0)
    assert ONE.decode(b"") == Part(0)
    with pytest.raises(
        WireError, match=r"Any \(2 bytes\): Whole.colour: Invalid enum value 'number 0'; install"
    ):
        FORMAT.decode(b"\x0a\x00")
    assert FORMAT.decode(b"\x0a\x02\x58\x01") == Whole()


def test_unknown_fields_are_left_out_and_unknown_kinds_are_not() -> None:
    later = b"\xa0\x06\x05" + b"\xa2\x06\x01x" + b"\xa1\x06" + bytes(8) + b"\xa5\x06" + bytes(4)
    assert ONE.decode(b"\x08\x07" + later) == Part(7)
    with pytest.raises(WireError, match=r"Any \(21 bytes\): unknown kind; install the same version"):
        FORMAT.decode(later[:-6] + b"\x1a\x02\x08\x01")


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (Whole(rank=1 << 32), "Whole.rank: Expected int <= 4294967295"),
        (Whole(rank=-1), "Whole.rank: Expected int >= 0"),
        (Whole(tag=1 << 64), "a Whole cannot be sent"),
        (Whole(random=1 << 64), "a Whole cannot be sent"),
        (Whole(share=float("nan")), "Whole.share: Expected float"),
        (Whole(name="abcde"), "Whole.name: Expected str of length <= 4"),
        (Whole(name="\ud800"), "a Whole cannot be sent"),
        (Whole(data=bytes(5)), "Whole.data: Expected bytes of length <= 4"),
        (Whole(parts=(Part(0),) * 4), "Whole.parts: Expected array of length <= 3"),
        (Whole(parts=(Part(0), Part(-1))), r"Whole.parts\[1\].number: Expected int >= 0"),
        (Whole(colour="blue"), "Whole.colour: Invalid enum value 'blue'"),  # type: ignore[arg-type]
        (Whole(is_on=1), "Whole.is_on: Expected bool"),  # type: ignore[arg-type]
    ],
)
def test_what_breaks_its_bounds_is_not_written(value: Whole, complaint: str) -> None:
    with pytest.raises(WireError, match=complaint):
        FORMAT.encode(value)


def test_items_are_counted_before_values_are_made_of_them() -> None:
    # Two messages in a row are one, with the items of both.
    data = FORMAT.encode(Whole(parts=(Part(0),) * 3)) * 2
    with pytest.raises(WireError, match=r"Whole\.parts has 6 items; at most 3"):
        FORMAT.decode(data)


def test_texts_for_people_are_cut() -> None:
    long = Part(1, "abcdef")
    assert FORMAT.decode(FORMAT.encode(Whole(part=long, other=long, parts=(long,)))) == Whole(
        part=Part(1, "abc…"), other=Part(1, "abc…"), parts=(Part(1, "abc…"),)
    )
    assert long.why == "abcdef"


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "Part.number: Expected int <="),
        (b"\x12\x05abcde", "Part.why: Expected str of length <= 4"),
        (b"\x12\x02\xff\xfe", "malformed"),
        (b"\x12\x7fx", "malformed"),
        (b"\x08" + b"\xff" * 11, "malformed"),
        (b"\x0b" * 200, "malformed"),
        (bytes(1025), "Part of 1,025 bytes; at most 1,024"),
    ],
)
def test_bytes_that_are_no_record_are_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(WireError, match=complaint):
        ONE.decode(data)


@given(
    value=wholes | parts,
    changes=st.lists(st.tuples(st.integers(0, 1 << 9), st.integers(0, 255)), max_size=4),
    more=st.binary(max_size=30),
    data=st.data(),
)
def test_any_bytes_are_a_record_or_an_error(
    value: Whole | Part, changes: list[tuple[int, int]], more: bytes, data: st.DataObject
) -> None:
    changed = bytearray(FORMAT.encode(value))
    for at, byte in changes:
        changed[at % len(changed)] = byte
    for attempt in (more, changed + more, changed[: data.draw(st.integers(0, len(changed)))]):
        with suppress(WireError):
            found: Any = FORMAT.decode(attempt)
            assert FORMAT.decode(FORMAT.encode(found)) == found


def test_the_schema_of_all_types() -> None:
    text = schema([FORMAT], {"Colour": Colour})
    assert "enum Colour {\n  COLOUR_UNSPECIFIED = 0;\n  COLOUR_RED = 1;\n  COLOUR_GREEN = 2;\n}" in text
    assert "message Any {\n  oneof message {\n    Whole whole = 1;\n    Part part = 2;\n  }\n}" in text
    assert "// A part.\nmessage Part {\n  uint64 number = 1;\n  string why = 2;\n}" in text
    for line in (
        *("fixed64 tag = 1", "optional uint32 rank = 2", "int64 signed = 3", "sint64 zigzag = 4"),
        *("int32 small = 5", "uint64 random = 6", "double share = 7", "bool is_on = 8", "string name = 9"),
        *("bytes data = 10", "Colour colour = 11", "optional Colour maybe = 12", "Part part = 13"),
        *("optional Part other = 14", "repeated Part parts = 15", "repeated uint32 ranks = 16"),
        "repeated string names = 17",
    ):
        assert f"\n  {line};\n" in text
