"""Messages of a star to bytes and back: nothing is lost, no bytes of a peer do harm."""

from __future__ import annotations

from contextlib import suppress

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softs_fast.coordination.star import messages as m
from softs_fast.errors import WireError

u64 = st.integers(0, (1 << 64) - 1)
u63 = st.integers(0, (1 << 63) - 1)
u32 = st.integers(0, (1 << 32) - 1)
text = st.text(max_size=20)
names = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)
processes = st.builds(m.StarProcess, names, text, text, u63, u63)
messages = st.one_of(
    st.builds(m.Join, u32, u32, u32, processes),
    st.builds(m.Part, u63, u64, u63, st.binary(max_size=99)),
    st.builds(m.Late, u63),
    st.builds(m.Leave, u63, text, st.booleans()),
    st.builds(m.Welcome, processes),
    st.builds(m.Differ, u63),
    st.builds(m.Lost, text),
)
envelopes = st.builds(m.Envelope, u64, u63, u32)


@given(envelopes, messages)
def test_messages_arrive_as_they_were(envelope: m.Envelope, message: m.Said) -> None:
    assert m.decode(m.encode(envelope, message)) == (envelope, message)


@given(envelopes, messages, st.data())
def test_any_bytes_are_read_or_refused(envelope: m.Envelope, message: m.Said, data: st.DataObject) -> None:
    valid = m.encode(envelope, message)
    changed = bytearray(valid)
    changed[data.draw(st.integers(0, len(valid) - 1))] ^= data.draw(st.integers(1, 255))
    for attempt in (
        data.draw(st.binary(max_size=300)),
        bytes(changed),
        valid[: data.draw(st.integers(0, 20))],
    ):
        with suppress(WireError):
            m.decode(attempt)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ([[7, 4, 1], [8, 1]], r"message of a star \(\d+ bytes\): Letter.message\[0\]: Invalid value 8"),
        ([[7, 4, 1], [2, 1, 0, 0]], "Letter.message: Expected array of at least length 5"),
        ([[7, 4, -1], [3, 1]], "Letter.envelope.rank: Expected int >= 0"),
        ([[7, 4, 1], [7, "x" * 4097]], "Expected str of length <= 4096"),
    ],
)
def test_what_breaks_its_bounds_is_refused(values: object, complaint: str) -> None:
    with pytest.raises(WireError, match=complaint):
        m.decode(msgpack.packb(values))
