"""Long messages in frames."""

from __future__ import annotations

import pytest

from softs_fast.dataflow.link import frames
from softs_fast.dataflow.link.frames import Assembler, cut
from softs_fast.errors import WireError


@pytest.mark.parametrize("n", [0, 1, frames.FRAME_BYTES - 1, frames.FRAME_BYTES, 3 * frames.FRAME_BYTES + 5])
def test_a_message_is_whole_again(n: int) -> None:
    message = bytes(i % 251 for i in range(n))
    pieces = list(cut(message))
    assert all(len(piece) <= frames.FRAME_BYTES for piece in pieces)
    assembler = Assembler()
    for _ in range(2):
        *first, last = [assembler.take(piece) for piece in pieces]
        assert first == [None] * len(first)
        assert last == message


@pytest.mark.parametrize("frame", [b"", b"\x02abc", b"\x01"])
def test_what_is_no_frame_is_refused(frame: bytes) -> None:
    with pytest.raises(WireError, match="are no frame of a flow"):
        Assembler().take(frame)


def test_a_message_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_BYTES", 100)
    assembler = Assembler()
    assert assembler.take(b"\x01" + bytes(100)) is None
    with pytest.raises(WireError, match="more than 100 bytes"):
        assembler.take(b"\x01a")
