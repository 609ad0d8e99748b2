"""Messages about elements of datasets: limits of each field, and what no field says alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgpack
import pytest
from wire_samples import SAMPLES

from softs_fast.dataflow.wire.elements import MOST_ELEMENTS, ElementsRead, ReadElements
from softs_fast.dataflow.wire.messages import decode, encode
from softs_fast.errors import WireError

(READ,) = [one for one in SAMPLES if isinstance(one, ReadElements)]
ANSWER, FAILED = [one for one in SAMPLES if isinstance(one, ElementsRead)]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"request": -1}, "ReadElements: request is -1; need an integer from 0"),
        ({"source": 1 << 12}, "ReadElements: source is 4096; need an integer from 0 to 4095"),
        ({"numbers": (1 << 48,)}, "ReadElements: numbers is 281474976710656; need an integer from 0"),
        ({"numbers": (True,)}, "ReadElements: numbers is True; need an integer"),
        ({"numbers": tuple(range(MOST_ELEMENTS + 1))}, "need a list of at most 1024"),
        ({"numbers": ()}, "need numbers that grow"),
        ({"numbers": (4, 4)}, r"a ReadElements has numbers \(4, 4\); need numbers that grow"),
        ({"numbers": (5, 4)}, "need numbers that grow"),
    ],
)
def test_a_request_names_elements_that_a_shard_can_have(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(WireError, match=complaint):
        decode(encode(replace(READ, **changes)))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"sizes": (24,)}, "an ElementsRead has sizes of 1 elements, and a column or tags of 2"),
        ({"columns": (*ANSWER.columns, ())}, "sizes of 2 elements, and a column or tags of 0"),
        ({"tags": ({},)}, "sizes of 2 elements, and a column or tags of 1"),
        ({"sizes": (24, -1)}, "ElementsRead: sizes is -1; need an integer from 0"),
        ({"sizes": (0,) * (MOST_ELEMENTS + 1)}, "ElementsRead: sizes is .*; need a list of at most 1024"),
        ({"length": -1}, "ElementsRead: length is -1; need an integer from 0"),
        ({"length": 1 << 48}, "ElementsRead: length is 281474976710656; need an integer from 0"),
        ({"tags": ({"a": None}, {})}, "ElementsRead: tags is None; need a number, True, False, or text"),
        ({"tags": ({"a": "x" * (1 << 17)}, {})}, "need a number, True, False, or text of at most 65536"),
        ({"tags": ({"x" * 1025: 1}, {})}, "need text of at most 1024"),
        ({"failure": ("x" * (1 << 18), "")}, "need text of at most 131072"),
        ({"failure": ("only one",)}, "need two values"),
    ],
)
def test_an_answer_has_a_value_of_each_kind_for_each_element(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(WireError, match=complaint):
        decode(encode(replace(ANSWER, **changes)))


def test_what_is_no_place_is_refused() -> None:
    values = msgpack.unpackb(encode(ANSWER))
    values[2][1][0][0][1] = 9  # a segment that the message does not have
    with pytest.raises(WireError, match="ElementsRead: columns is 9; need an integer from 0 to 1"):
        decode(msgpack.packb(values))
    assert decode(encode(FAILED)) == FAILED
