"""Messages in frames of bounded size: a message that is longer than a frame is sent as several."""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import WireError
from .messages import MAX_BYTES

__all__ = ["FRAME_BYTES", "Assembler", "cut"]

#: Bytes of a frame, its first byte among them.
FRAME_BYTES = 1 << 19
_LAST, _MORE = 0, 1


def cut(message: bytes) -> Iterator[bytes]:
    """Yield the frames of a message."""
    size = FRAME_BYTES - 1
    starts = range(0, max(len(message), 1), size)
    for start in starts:
        kind = _LAST if start + size >= len(message) else _MORE
        yield bytes([kind]) + message[start : start + size]


class Assembler:
    """Puts the frames of one connection together again."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._n_bytes = 0

    def take(self, frame: bytes) -> bytes | None:
        """Take a frame; returns the message that it ends, or None.

        Raises:
            WireError: it is no frame, or the message has too many bytes.
        """
        # Frames without bytes that end no message would be kept without end.
        if not frame or frame[0] not in (_LAST, _MORE) or frame == bytes([_MORE]):
            raise WireError(f"{len(frame)} bytes are no frame of a flow")
        self._n_bytes += len(frame) - 1
        if self._n_bytes > MAX_BYTES:
            raise WireError(f"a message has more than {MAX_BYTES} bytes")
        self._parts.append(frame[1:])
        if frame[0] == _MORE:
            return None
        message, self._parts, self._n_bytes = b"".join(self._parts), [], 0
        return message
