"""Messages between hosts: what is sent is what is read, and bytes that are no message are refused."""

from __future__ import annotations

import json
import math
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softs_fast.averaging.hosts.messages import (
    MAX_MESSAGE_BYTES,
    MESSAGES,
    Ask,
    Leave,
    Look,
    Message,
    Offer,
    Refuse,
    Seen,
    SentHeader,
    Want,
)
from softs_fast.averaging.reports import MAX_REPORTS, Report
from softs_fast.errors import WireError
from softs_fast.snapshots import Header

NOW_S = 1000.0
numbers = st.integers(0, (1 << 63) - 1)
configs = st.none() | st.dictionaries(st.text(max_size=20), st.integers() | st.text(max_size=20), max_size=5)
headers = st.builds(
    Header,
    version=st.integers(1, (1 << 63) - 1),
    step=st.integers(-(1 << 63), (1 << 63) - 1),
    metric=st.none() | st.floats(),
    trained=numbers,
    published_s=st.integers(0, 1000).map(float),
    config=configs,
)
sent_headers = headers.map(lambda header: SentHeader.of(header, NOW_S))
reports = st.builds(Report, numbers, st.none() | st.floats(), numbers)
everything = st.one_of(
    st.builds(Look, numbers, numbers),
    st.builds(Seen, sent_headers, st.lists(reports, max_size=MAX_REPORTS).map(tuple)),
    st.builds(Ask, numbers),
    st.builds(Want, numbers, st.booleans()),
    st.builds(Offer, numbers, st.integers(0, 1 << 40), sent_headers),
    st.builds(Refuse, numbers, st.booleans()),
    st.just(Leave()),
)


@given(everything)
def test_what_is_sent_is_what_is_read(message: Message) -> None:
    said = MESSAGES.encode(message)
    assert len(said) <= MAX_MESSAGE_BYTES
    assert repr(MESSAGES.decode(said)) == repr(message)


@given(headers)
def test_ages_are_sent_and_not_times(header: Header) -> None:
    sent = SentHeader.of(header, NOW_S)
    assert repr(sent.at(NOW_S)) == repr(header)
    assert sent.at(NOW_S - 950.0).published_s == header.published_s - 950.0


@given(st.binary(max_size=200))
def test_random_bytes_are_a_message_or_refused(said: bytes) -> None:
    try:
        message = MESSAGES.decode(said)
    except WireError:
        return
    assert isinstance(message, Message)


@given(everything, st.data())
def test_bytes_that_were_changed_are_a_message_or_refused(message: Message, data: st.DataObject) -> None:
    said = bytearray(MESSAGES.encode(message))
    said[data.draw(st.integers(0, len(said) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(said[: data.draw(st.integers(0, len(said)))])
    for text in (bytes(said), cut):
        try:
            found = MESSAGES.decode(text)
        except WireError:
            continue
        if isinstance(found, Seen | Offer):
            assert 0 <= found.header.version < 1 << 63
            header = found.header.at(NOW_S)
            assert math.isfinite(header.published_s)
            assert header.config is None or isinstance(header.config, dict)


HEADER = [1, 0, None, 0, 0.0, b""]


def header_with(config: bytes, age_s: float = 0.0) -> list[object]:
    return [2, [*HEADER[:4], age_s, config], []]


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (b"", "cannot be read"),
        (bytes(MAX_MESSAGE_BYTES + 1), "of 8,193 bytes; at most 8,192"),
        (b"\1" + bytes(16), "cannot be read"),  # as an earlier version has it
        ([9], "unknown kind 9"),
        ([7, 1], "Leave: Expected array of at most length 0, got 1"),
        ([1, 1 << 63, 0], "Look.seen: Expected int <= 9223372036854775807"),
        ([2, HEADER, [[1, None, 1]] * (MAX_REPORTS + 1)], "reports: Expected array of length <= 16"),
        ([2, HEADER, [[1, None, -1]]], r"reports\[0\].trained: Expected int >= 0"),
        ([4, 1, 2], "Want.is_manifest: Expected bool, got int"),
        ([5, 1, (1 << 40) + 1, HEADER], "n_bytes: Expected int <= 1099511627776"),
        (header_with(b"[1]"), "not a dict"),
        (header_with(b"{"), "malformed"),
        (header_with(b"[" * 3000), "malformed"),
        (header_with(b'"\xff"'), "malformed"),
        (header_with(json.dumps({"a": "b" * 3840}).encode()), "header.config: Expected bytes of length <= "),
        (header_with(b"", math.nan), "header.age_s: Expected float"),
        (header_with(b"", math.inf), "header.age_s: Expected float <= "),
        (header_with(b"", -1.0), "header.age_s: Expected float >= 0.0"),
    ],
)
def test_what_is_malformed_is_named(said: Any, text: str) -> None:
    with pytest.raises(WireError, match=text):
        MESSAGES.decode(said if isinstance(said, bytes) else msgpack.packb(said))
