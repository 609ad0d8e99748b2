"""Messages of a flow: what was sent arrives, and nothing else is accepted."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, get_args

import msgpack
import pytest
from wire_samples import SAMPLES, place, shown

from softs_fast.dataflow.link import messages
from softs_fast.dataflow.link.messages import (
    Columns,
    ElementsRead,
    MainTask,
    Message,
    MoveTask,
    ReadElements,
    decode,
    encode,
)
from softs_fast.errors import WireError
from softs_fast.records import replace

#: A column of one row.
ONE = Columns.of({"x": [place(1)]})


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_arrives_as_it_was_sent(message: Message) -> None:
    assert decode(encode(message)) == message


def test_the_bytes_are_those_of_the_first_version() -> None:
    """Written down once; a master and its workers on other hosts may have been installed at different times."""
    lines = [line.split() for line in (Path(__file__).parent / "flow_messages.hex").read_text().splitlines()]
    assert [[type(one).__name__, encode(one).hex()] for one in SAMPLES] == lines
    assert [decode(bytes.fromhex(data)) for _, data in lines] == SAMPLES


def test_a_segment_is_named_once_however_many_rows_it_has() -> None:
    run = SAMPLES[0]
    assert isinstance(run, messages.MainTask)
    few, many = (
        len(
            encode(
                replace(
                    run,
                    ids=tuple(range(n)),
                    tags=({},) * n,
                    columns=Columns.of({"x": [place(i % 1000) for i in range(n)]}),
                )
            )
        )
        for n in (100, 1100)
    )
    assert (many - few) / 1000 < 50


def test_all_kinds_have_a_sample() -> None:
    assert {type(one) for one in SAMPLES} == set(get_args(Message))


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        (msgpack.packb([99]), "message of a flow .*unknown kind 99; install the same version"),
        (msgpack.packb([4, 1, [0, [], [["w"], [], []]], None]), r"places of \[\] values; need one"),
        (msgpack.packb([4, 1, [0, [], [["w"], [], [[]]]], None]), r"places of \[0\] values; need one"),
        (
            msgpack.packb(
                [
                    4,
                    1,
                    [0, [["w", [2], [0], [2], "int8"]], [["w"], [], [[[1, 0, 0, 0, 0, "int", []]]]]],
                    None,
                ]
            ),
            "a place is in segment 0 of 0",
        ),
    ],
)
def test_what_is_no_message_is_refused(values: bytes, complaint: str) -> None:
    with pytest.raises(WireError, match=complaint):
        decode(values)


@pytest.mark.parametrize(
    ("kind", "changes", "complaint"),
    [
        (MainTask, {"columns": ONE}, "a MainTask has 2 ids and a column of 1 values"),
        (MainTask, {"tags": ({},)}, "a MainTask has 2 ids and tags of 1"),
        (MoveTask, {"columns": ONE}, "a MoveTask has 2 ids and a column of 1 values"),
        (ReadElements, {"numbers": (4, 4)}, r"a ReadElements has numbers \(4, 4\); need numbers that grow"),
        (ReadElements, {"numbers": (5, 4)}, "need numbers that grow"),
        (
            ElementsRead,
            {"sizes": (24,)},
            "an ElementsRead has sizes of 1 elements, and a column or tags of 2",
        ),
        (ElementsRead, {"columns": ONE}, "sizes of 2 elements, and a column or tags of 1"),
        (ElementsRead, {"tags": ({},)}, "sizes of 2 elements, and a column or tags of 1"),
    ],
)
def test_what_does_not_fit_together_is_refused(kind: type, changes: dict[str, Any], complaint: str) -> None:
    sample: Any = next(one for one in SAMPLES if isinstance(one, kind))
    with pytest.raises(WireError, match=complaint):
        decode(encode(replace(sample, **changes)))


def test_columns_with_other_names_than_places_are_refused() -> None:
    (sample,) = [one for one in SAMPLES if isinstance(one, MoveTask)]
    packed = sample.columns.packed()
    for names, rows in ((("x", "x"), packed.rows * 2), (("x", "y"), packed.rows)):
        columns = replace(packed, names=names, rows=rows)
        with pytest.raises(WireError, match=f"{len(rows)} columns have the names {', '.join(names)}"):
            decode(encode(replace(sample, columns=columns)))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"regions": [["w", [8, 2], [6, 0], [3, 2], "float32"]]},
            r"\[3, 2\] items at \[6, 0\] are not in a tensor of shape \[8, 2\]",
        ),
        (
            {"regions": [["w", [8, 2], [0], [3, 2], "float32"]]},
            r"shape \[8, 2\], start \[0\], size \[3, 2\] differ in dimensions",
        ),
        ({"regions": []}, "weights are 'bytes' of 24 bytes; need bytes, 0 for 0 regions"),
        (
            {"regions": [["w", [8, 2], [0, 0], [2, 2], "float32"]]},
            "of 24 bytes; need bytes, 16 for 1 regions",
        ),
        ({"regions": [["w", [8], [0], [0], "bool"]] * 2}, "2 regions of tensors are shown, 1 different ones"),
        ({"regions": bytes(16)}, "has layout 0{32}, which was not sent on this connection"),
        ({"kind": "str"}, "are 'str' of 24 bytes"),
    ],
)
def test_regions_that_cannot_be_are_refused(changes: dict[str, Any], complaint: str) -> None:
    state = msgpack.unpackb(encode(messages.State(1, shown(0))))
    role, regions, (names, segments, [[one]]) = state[2]
    # Of the sample without its scalar.
    one[3], one[5] = 24, changes.get("kind", "bytes")
    role, regions = changes.get("role", role), changes.get("regions", regions[:1])
    state[2] = [role, regions, [names, segments, [[one]]]]
    with pytest.raises(WireError, match=complaint):
        decode(msgpack.packb(state))


@pytest.mark.parametrize(
    ("part", "complaint"),
    [
        ((1, 2, 6, 2, True, (3, 0)), "a MainTask has 2 ids, of which 1 are data in 2 rows"),
        ((2, 1, 6, 2, True, (3, 0)), "a MainTask has 2 ids, of which 2 are data in 1 rows"),
        ((7, 2, 6, 2, True, (3, 0)), "7 rows of a call are data here, 6 in all of it"),
        ((2, 2, 6, 2, True, (3,)), "a MainTask has 2 columns and the longest values of 1"),
    ],
)
def test_a_slice_has_the_rows_of_its_message(part: Any, complaint: str) -> None:
    run = SAMPLES[0]
    assert isinstance(run, messages.MainTask)
    with pytest.raises(WireError, match=complaint):
        decode(encode(replace(run, part=messages.Slice(*part))))


def test_changed_bytes_are_a_message_or_an_error() -> None:
    chance = random.Random(5)
    samples = [encode(message) for message in SAMPLES]
    n_errors = 0
    for _ in range(4000):
        data = bytearray(chance.choice(samples))
        for _ in range(chance.randint(1, 4)):
            match chance.randrange(3):
                case 0:
                    data[chance.randrange(len(data))] = chance.randrange(256)
                case 1:
                    del data[chance.randrange(len(data)) :]
                    data = data or bytearray(1)
                case 2:
                    at = chance.randrange(len(data))
                    data[at:at] = chance.randbytes(chance.randint(1, 6))
        try:
            assert type(decode(bytes(data))) in get_args(Message)
        except WireError:
            n_errors += 1
    assert n_errors > 1000


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_lists_that_are_too_deep_are_refused(message: Message) -> None:
    values = msgpack.unpackb(encode(message), strict_map_key=False, unicode_errors="surrogatepass")
    fields = [msgpack.packb(one, unicode_errors="surrogatepass") for one in values]
    for number in range(1, len(fields)):
        deep = [*fields[:number], b"\x91" * 1000 + b"\xc0", *fields[number + 1 :]]
        with pytest.raises(WireError):
            decode(b"\xdc" + len(fields).to_bytes(2, "big") + b"".join(deep))
