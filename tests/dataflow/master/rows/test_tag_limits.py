"""Tags, names and reasons at their limits: what is taken here goes into a message and out of it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from softs_fast.dataflow.link.messages import Result, decode, encode
from softs_fast.dataflow.master.rows.tags import checked_name, checked_reason, checked_tag, checked_tags
from softs_fast.errors import FlowError


def test_what_is_just_small_enough_is_that_for_messages() -> None:
    values = [-(1 << 63), (1 << 64) - 1, "é" * 65_536, True, -0.0, math.inf, np.float64(0.1)]
    tags = checked_tags(3, {f"{i:01024}": value for i, value in enumerate([*values, *range(1017)])})
    reason = checked_reason("é" * (1 << 17))
    message = Result(2, ids=(3,), tags={3: tags}, dropped={3: reason}, failed={3: reason})
    message.numbers[checked_name("name", "n" * 1024)] = 1.0
    assert decode(encode(message)) == message


def test_what_is_larger_is_refused() -> None:
    with pytest.raises(FlowError, match="row 3 has 1025 tags; need at most 1024"):
        checked_tags(3, {str(i): i for i in range(1025)})
    with pytest.raises(FlowError, match="dropped or have failed is text of 131073 characters; need text of"):
        checked_reason("x" * ((1 << 17) + 1))
    with pytest.raises(FlowError, match="name is text of 1025 characters; need text of at most 1024"):
        checked_name("name", "x" * 1025)
    for check in (checked_tag, checked_name):
        with pytest.raises(
            FlowError, match=r"it is no Unicode text, and cannot be sent: .* surrogates not allowed"
        ):
            check("it", "a\ud800")
    with pytest.raises(FlowError, match="is no Unicode text"):
        checked_reason("a\ud800")
    for value in (1 << 64, -(1 << 63) - 1):
        with pytest.raises(FlowError, match=r"tag is an integer that is too large; need one from -2\^63"):
            checked_tag("tag", value)
