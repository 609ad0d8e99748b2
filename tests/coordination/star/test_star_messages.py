"""Messages of a star to bytes and back: nothing is lost, no bytes of a peer do harm."""

from __future__ import annotations

from contextlib import suppress

import msgpack
import pytest

from softs_fast.coordination.star import messages as m
from softs_fast.errors import WireError

PROCESS = m.StarProcess("w0", "boot.4026531836", "höst", 7, 123)
MESSAGES = [
    m.Join(3, 1 << 20, m.PROTOCOL, PROCESS),
    m.Part((1 << 63) - 1, (1 << 64) - 1, 0, b"\0data"),
    m.Late(1),
    m.Leave(0, "why", True),
    m.Welcome(PROCESS),
    m.Differ(2),
    m.Lost(""),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda one: type(one).__name__)
def test_a_message_arrives_as_it_was_and_not_in_parts(message: m.Said) -> None:
    envelope = m.Envelope((1 << 64) - 1, 4, 1)
    data = m.encode(envelope, message)
    assert m.decode(data) == (envelope, message)
    for end in range(len(data)):
        with pytest.raises(WireError):
            m.decode(data[:end])
        for byte in range(256):
            changed = bytearray(data)
            changed[end] = byte
            with suppress(WireError):
                m.decode(bytes(changed))


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
