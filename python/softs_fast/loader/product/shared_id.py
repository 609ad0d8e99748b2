"""The name of the product that a dataset orders, in memory that all its processes share."""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import struct
import sys
import time
import zlib
from typing import Any

from ... import _core
from ...errors import ConfigError
from ...market.client import LeaveAfter

__all__ = ["SharedModelId"]


class SharedModelId:
    """A string in memory that forked and spawned workers share.

    No lock: one of a fork context cannot go to a spawned process, and a killed holder would block the others.
    Instead the record carries a checksum. A reader that meets a half-written one reads again, and a writer
    whose record was mixed with another writer's writes again, so the last one to finish leaves a whole record.

    Args:
        value: the first name.

    Raises:
        ConfigError: as for `write`; or it is pickled for something else than a process that starts.
    """

    def __init__(self, value: str) -> None:
        self._memory = multiprocessing.RawArray("B", _RECORD.size)
        self._view = memoryview(self._memory).cast("B")
        self._seen = (b"", "")
        self.write(value)

    def write(self, value: str) -> None:
        """Set the name, for all processes, and wake those who sleep because of it.

        Raises:
            ConfigError: it is no string, or longer than 256 bytes of UTF-8.
        """
        if not isinstance(value, str):
            raise ConfigError(f"model_id must be a string, got {type(value).__name__}")
        text = value.encode()
        if len(text) > _MODEL_ID_BYTES:
            raise ConfigError(
                f'model_id "{value[:32]}..." has {len(text)} bytes of UTF-8; at most {_MODEL_ID_BYTES}'
            )
        record = _RECORD.pack(zlib.crc32(text), len(text), text)
        self._view[:] = record
        while _text_of(bytes(self._view)) is None:
            self._view[:] = record
        self.wake()

    def sleep_while(self, value: str, leave_after: LeaveAfter) -> None:
        """Sleep while it is this name, see `WantedProduct`."""
        record = bytes(self._view)
        if _text_of(record) == value.encode():
            # The checksum: what follows changes with it.
            leave_after(value, self._view, int.from_bytes(record[:4], sys.byteorder))

    def wake(self) -> None:
        """Wake all who sleep, in whatever process."""
        _core.wake(self._view)

    def read(self) -> str:
        """Return the name."""
        while True:
            record = bytes(self._view)
            if record == self._seen[0]:
                return self._seen[1]
            text = _text_of(record)
            if text is not None:
                self._seen = (record, text.decode())
                return self._seen[1]
            time.sleep(0)  # lets a writer in this process finish

    def __getstate__(self) -> Any:
        if multiprocessing.context.get_spawning_popen() is None:
            raise ConfigError(
                "datasets and loaders share their model_id with processes that they are given to when those start, such as a "
                "DataLoader's workers; they cannot be pickled or copied otherwise: make another one, with the same arguments"
            )
        return self._memory

    def __setstate__(self, memory: Any) -> None:
        self._memory = memory
        self._view = memoryview(memory).cast("B")
        self._seen = (b"", "")


def _text_of(record: bytes) -> bytes | None:
    """Return the text of a record, or None if it is torn."""
    checksum, length, padded = _RECORD.unpack(record)
    text: bytes = padded[:length]
    return text if zlib.crc32(text) == checksum else None


_MODEL_ID_BYTES = 256
_RECORD = struct.Struct(f"<IH{_MODEL_ID_BYTES}s")
