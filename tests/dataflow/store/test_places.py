"""Places as messages: they are the same on the other side, and nothing that is impossible gets through."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softs_fast.dataflow.store import Place, Places, SegmentAddress
from softs_fast.dataflow.store.places import KINDS, form_bytes
from softs_fast.errors import WireError
from softs_fast.records import replace

ADDRESS = SegmentAddress(7, 12345, 4026531836, 9, bytes(range(16)), 1 << 20, "", "")
PLACES = [
    Place(3, ADDRESS, 64, 24, (1 << 64) - 1, "tensor", (("float32", (2, 3)),)),
    Place(0, ADDRESS, 0, 0, 1, "tensor", (("bfloat16", (0, 5)),)),
    Place(0, ADDRESS, 128, 8, 1, "tensor", (("int64", ()),)),
    Place(1, ADDRESS, 0, 70, 5, "tensors", (("uint8", (3,)), ("bool", (6,)))),
    Place(1, ADDRESS, 0, 0, 5, "tensors", ()),
    *(
        Place(1, ADDRESS, 0, n, 5, kind, ())
        for kind, n in [("bytes", 9), ("str", 0), ("int", 3), ("float", 8), ("bool", 1), ("none", 0)]
    ),
]


def test_a_place_is_the_same_on_the_other_side() -> None:
    for place in PLACES:
        assert Place.from_wire(msgpack.unpackb(msgpack.packb(place.as_wire()))) == place


def changed(at: tuple[int, ...], value: object) -> list[Any]:
    wire: list[Any] = msgpack.unpackb(msgpack.packb(PLACES[0].as_wire()))
    inner = wire
    for i in at[:-1]:
        inner = inner[i]
    inner[at[-1]] = value
    return wire


WRONG: list[tuple[tuple[int, ...], object, str]] = [
    ((0,), -1, "Place.worker: Expected int >= 0"),
    ((0,), True, "Place.worker: Expected int, got bool"),
    ((0,), 1 << 31, "Place.worker: Expected int <= 2147483647"),
    ((1,), None, "Place.segment: Expected array, got null"),
    ((1,), [1, 2], "Place.segment: Expected array of at least length 8, got 2"),
    ((1, 0), "7", "Place.segment.pid: Expected int, got str"),
    ((1, 1), -5, "Place.segment.started: Expected int >= 0"),
    ((1, 2), 1.5, "Place.segment.pid_namespace: Expected int, got float"),
    ((1, 3), 1 << 31, "Place.segment.fd: Expected int <= 2147483647"),
    ((1, 4), b"short", "Place.segment.nonce: Expected bytes of length >= 16"),
    ((1, 4), "0" * 16, "Place.segment.nonce: Expected bytes, got str"),
    ((1, 5), 1 << 47, "Place.segment.n_bytes: Expected int <= 70368744177664"),
    ((1, 6), "two\nlines", "Place.segment.host: Expected str matching regex"),
    ((1, 7), "x" * 301, "Place.segment.endpoint: Expected str of length <= 300"),
    ((1, 7), 4711, "Place.segment.endpoint: Expected str, got int"),
    ((1, 5), 64, "24 bytes at 64 are not in a segment of 64 bytes"),
    ((1, 5), 95, "24 bytes at 64 are not in a segment of 95 bytes"),
    ((2,), 65, "at a multiple of 64"),
    ((2,), 1 << 20, "are not in a segment"),
    ((2,), -64, "Place.offset: Expected int >= 0"),
    ((3,), 25, "has 25 bytes; need 24"),
    ((3,), 1 << 46, "Place.n_bytes: Expected int <= 70368744177663"),
    ((4,), -1, "Place.serial: Expected int >= 0"),
    ((5,), "object", "Place.kind: Expected str matching regex"),
    ((5,), [], "Place.kind: Expected str, got array"),
    ((5,), "bytes", "a bytes has 1 dtypes and shapes"),
    ((6,), [], "a tensor has 0 dtypes and shapes"),
    ((6,), 5, "Place.parts: Expected array, got int"),
    ((6,), [[0, 0]] * 70_000, "Place.parts: Expected array of length <= 65536"),
    ((6, 0), ["float32"], r"Place.parts\[0\]: Expected array of length 2, got 1"),
    ((6, 0, 0), "object", r"Place.parts\[0\]\[0\]: Expected str matching regex"),
    ((6, 0, 0), [], r"Place.parts\[0\]\[0\]: Expected str, got array"),
    ((6, 0, 1), [2, -3], r"Place.parts\[0\]\[1\]\[1\]: Expected int >= 0"),
    ((6, 0, 1), [1 << 60] * 64, r"Place.parts\[0\]\[1\]\[0\]: Expected int <= "),
    ((6, 0, 1), [1 << 45] * 64, "need"),
    ((6, 0, 1), [1] * 65, r"Place.parts\[0\]\[1\]: Expected array of length <= 64"),
    ((6, 0, 1), [2, 4], "has 24 bytes; need 32"),
]


def test_none_has_no_bytes() -> None:
    none = PLACES[-1].as_wire()
    assert none[5] == "none"
    for at, value, why in [(3, 1, "a none has 1 bytes; need 0"), (6, [["int8", [0]]], "a none has 1 dtypes")]:
        wrong = list(none)
        wrong[at] = value
        with pytest.raises(WireError, match=why):
            Place.from_wire(wrong)
    column = Places.of([PLACES[-1]]).as_wire()
    column[3] = int64(1)
    with pytest.raises(WireError, match=r"row 0 has 1 bytes at 0 .* as .'none'"):
        Places.from_wire(column)


def test_each_field_is_checked() -> None:
    for at, value, why in WRONG:
        with pytest.raises(WireError, match=why):
            Place.from_wire(changed(at, value))


def test_what_is_no_place_is_refused() -> None:
    for wire in (None, 1, "place", [], PLACES[0].as_wire()[:6], {}, [0] * 7, b"1234567"):
        with pytest.raises(WireError):
            Place.from_wire(wire)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=17),
    lambda inner: st.lists(inner, max_size=7),
    max_leaves=12,
)


@given(st.sampled_from(PLACES), st.integers(0, 6), ANYTHING | st.sampled_from(KINDS))
def test_any_other_field_is_refused_or_keeps_its_place_in_the_segment(
    one: Place, at: int, value: object
) -> None:
    wire = one.as_wire()
    wire[at] = value
    try:
        place = Place.from_wire(wire)
    except WireError:
        return
    assert form_bytes((place.kind, place.parts)) in (None, place.n_bytes)
    assert 0 <= place.offset <= place.segment.n_bytes - place.n_bytes - 8


def column() -> Places:
    """Places of one worker as arrays: of one form, of others, and of different bytes."""
    kinds = [PLACES[0], PLACES[2], PLACES[0], *PLACES[3:]]
    return Places.of([replace(one, worker=3, offset=1024 * i) for i, one in enumerate(kinds)])


def test_places_of_a_column_are_the_same_on_the_other_side() -> None:
    places = column()
    there = Places.from_wire(msgpack.unpackb(msgpack.packb(places.as_wire())))
    assert list(there) == list(places)
    assert list(there[1:5:2]) == [places[1], places[3]]
    assert list(there.select([5, 0, 5])) == [places[5], places[0], places[5]]
    assert there[-1] == places[len(places) - 1]
    assert len(there.forms) == len(places) - 1
    assert [Place.from_wire(one.as_wire()) for one in there] == list(places)
    empty = places[:0]
    assert list(Places.from_wire(msgpack.unpackb(msgpack.packb(empty.as_wire())))) == []


def int64(*values: int) -> bytes:
    return np.array(values, "<i8").tobytes()


def test_each_field_of_a_column_is_checked() -> None:
    good = Places.of([PLACES[0]]).as_wire()
    assert list(Places.from_wire(good)) == [PLACES[0]]
    float32 = ["tensor", [["float32", [2, 3]]]]
    for at, value, why in [
        (0, -1, "worker is -1"),
        (0, True, "worker is True"),
        (1, [], "SegmentAddress: Expected array of at least length 8, got 0"),
        (2, int64(64, 128), "offsets are .* need 8 bytes"),
        (2, [64], r"offsets are \[64\]"),
        (2, int64(65), "row 0 has 24 bytes at 65"),
        (2, int64(-64), "row 0 has 24 bytes at -64"),
        (2, int64(1 << 20), "row 0 has 24 bytes at 1048576"),
        (2, int64((1 << 63) - 64), "row 0 has 24 bytes at"),
        (3, int64(25), "row 0 has 25 bytes"),
        (3, int64(-8), "row 0 has -8 bytes"),
        (3, int64((1 << 63) - 1), "row 0 has"),
        (3, b"", "n_bytes are b'' *; need 8 bytes"),
        (4, b"1234567", "serials are"),
        (5, [], "forms of rows are 0 to 0 of 0"),
        (5, [float32, float32], "forms are .*; need at most 1"),
        (5, None, "forms are None"),
        (5, [["object", []]], "Expected str matching regex"),
        (5, [["tensor", []]], "a tensor has 0 dtypes"),
        (5, [["tensor", [["float32", [1 << 45] * 64]]]], "more bytes than a segment"),
        (5, [["tensor", [["float32", [7]]]]], "row 0 has 24 bytes"),
        (6, b"\1\0\0\0", "forms of rows are 1 to 1 of 1"),
        (6, b"\xff" * 4, "forms of rows are -1 to -1 of 1"),
        (6, b"123", "no bytes of at most"),
        (6, "", "no bytes of at most"),
    ]:
        wire = list(good)
        wire[at] = value
        with pytest.raises(WireError, match=why):
            Places.from_wire(wire)
    for wrong in (None, [], good[:6], b"1234567"):
        with pytest.raises(WireError, match="need a list of 7"):
            Places.from_wire(wrong)
