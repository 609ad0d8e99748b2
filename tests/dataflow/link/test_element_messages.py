"""Messages about elements of datasets: limits of each field, and what no field says alone."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from wire_samples import SAMPLES

from softs_fast.dataflow.link.columns import Columns
from softs_fast.dataflow.link.elements import MOST_ELEMENTS, ElementsRead, ReadElements
from softs_fast.dataflow.link.messages import decode, encode
from softs_fast.errors import WireError
from softs_fast.records import replace

(READ,) = [one for one in SAMPLES if isinstance(one, ReadElements)]
ANSWER, FAILED = [one for one in SAMPLES if isinstance(one, ElementsRead)]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"request": -1}, "ReadElements.request: Expected int >= 0"),
        ({"source": 1 << 12}, "ReadElements.source: Expected int <= 4095"),
        ({"numbers": (1 << 48,)}, "ReadElements.numbers.0.: Expected int <= 281474976710655"),
        ({"numbers": (True,)}, "ReadElements.numbers.0.: Expected int, got bool"),
        (
            {"numbers": tuple(range(MOST_ELEMENTS + 1))},
            "ReadElements.numbers: Expected array of length <= 1024",
        ),
        ({"numbers": ()}, "ReadElements.numbers: Expected array of length >= 1"),
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
        (
            {"columns": Columns.of({**ANSWER.columns.places, "z": ()})},
            "sizes of 2 elements, and a column or tags of 0",
        ),
        ({"tags": ({},)}, "sizes of 2 elements, and a column or tags of 1"),
        ({"sizes": (24, -1)}, "ElementsRead.sizes.1.: Expected int >= 0"),
        (
            {
                "sizes": (0,) * (MOST_ELEMENTS + 1),
                "tags": ({},) * (MOST_ELEMENTS + 1),
                "columns": Columns.of({}),
            },
            "ElementsRead.sizes: Expected array of length <= 1024",
        ),
        ({"length": -1}, "ElementsRead.length: Expected int >= 0"),
        ({"length": 1 << 48}, "ElementsRead.length: Expected int <= 281474976710655"),
        ({"tags": ({"a": None}, {})}, "ElementsRead.tags.*: Expected bool . int . float . str, got None"),
        ({"tags": ({"a": "x" * (1 << 17)}, {})}, "ElementsRead.tags.*: Expected str of length <= 65536"),
        ({"tags": ({"x" * 1025: 1}, {})}, "ElementsRead.tags.0.: Expected str of length <= 1024"),
        ({"failure": ("x" * (1 << 18), "")}, "ElementsRead.failure.reason: Expected str of length <= 131072"),
        ({"failure": ("only one",)}, "ElementsRead.failure: Expected array of"),
    ],
)
def test_an_answer_has_a_value_of_each_kind_for_each_element(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(WireError, match=complaint):
        decode(encode(replace(ANSWER, **changes)))


def test_what_is_no_place_is_refused() -> None:
    values = msgpack.unpackb(encode(ANSWER))
    values[2][2][0][0][1] = 9  # a segment that the message does not have
    with pytest.raises(WireError, match="a place is in segment 9 of 2"):
        decode(msgpack.packb(values))
    assert decode(encode(FAILED)) == FAILED
