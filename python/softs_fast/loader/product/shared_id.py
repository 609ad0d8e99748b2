"""The name of the product that a dataset orders, in memory that all its processes share."""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import struct
import time
import zlib
from typing import Any

from ... import _core
from ...errors import ConfigError
from ...market import LeaveAfter

__all__ = ["SharedModelId"]


class SharedModelId:
    """A string in memory that forked and spawned workers share: the number of its changes, then a record of the string.

    There is no lock: a lock of a fork context cannot be sent to a spawned process, and a process that is killed while
    it holds a lock would block the others. Instead the record has a checksum. A reader that meets a half-written record
    reads again. A writer that finds its record mixed with another one writes again, so the last one to finish leaves a
    whole record. Each change is counted after its record is whole, so a number that was read before a record is never
    newer than that record.

    Args:
        value: the first name.

    Raises:
        ConfigError: as for `write`; or it is pickled for something else than a process that starts.
    """

    #: The last record and its text.
    _seen: tuple[bytes, str]

    def __init__(self, value: str) -> None:
        self._attach(multiprocessing.RawArray("B", _COUNTER_BYTES + _RECORD.size))
        self._write(_encoded(value))

    def write(self, value: str) -> None:
        """Set the name, for all processes, and wake those that sleep until it changes.

        Raises:
            ConfigError: it is no string, or longer than 256 bytes of UTF-8.
        """
        text = _encoded(value)
        if self.read() != value:
            self._write(text)

    def version(self) -> int:
        """Return how often the name was changed, modulo 2^32."""
        return self._counter[0]

    def read(self) -> str:
        """Return the name."""
        # Read once: another thread may replace it.
        seen = self._seen
        while True:
            record = bytes(self._record)
            if record == seen[0]:
                return seen[1]
            text = _text_of(record)
            if text is not None:
                self._seen = seen = (record, text.decode())
                return seen[1]
            time.sleep(0)  # lets a writer in this process finish

    def sleep_while(self, version: int, product: str, leave_after: LeaveAfter) -> None:
        """Sleep while the name was not changed since, see `ProductSource`."""
        leave_after(product, self._view, version)

    def wake(self) -> None:
        """Wake all threads that sleep, in all processes."""
        _core.wake(self._view)

    def __getstate__(self) -> Any:
        if multiprocessing.context.get_spawning_popen() is None:
            raise ConfigError(
                "datasets and loaders share their model_id with processes that they are given to when those start, such as a "
                "DataLoader's workers; they cannot be pickled or copied otherwise: make another one, with the same arguments"
            )
        return self._memory

    def __setstate__(self, memory: Any) -> None:
        self._attach(memory)

    def _attach(self, memory: Any) -> None:
        self._memory = memory
        self._view = memoryview(memory).cast("B")
        self._counter = self._view[:_COUNTER_BYTES].cast("I")
        self._record = self._view[_COUNTER_BYTES:]
        self._seen = (b"", "")

    def _write(self, text: bytes) -> None:
        record = _RECORD.pack(zlib.crc32(text), len(text), text)
        self._record[:] = record
        while _text_of(bytes(self._record)) is None:
            self._record[:] = record
        _core.count_change(self._view)


def _encoded(value: Any) -> bytes:
    if not isinstance(value, str):
        raise ConfigError(f"model_id must be a string, got {type(value).__name__}")
    text = value.encode()
    if len(text) > _MODEL_ID_BYTES:
        raise ConfigError(
            f'model_id "{value[:32]}..." has {len(text)} bytes of UTF-8; at most {_MODEL_ID_BYTES}'
        )
    return text


def _text_of(record: bytes) -> bytes | None:
    """Return the text of a record, or None if it is torn."""
    checksum, length, padded = _RECORD.unpack(record)
    text: bytes = padded[:length]
    return text if zlib.crc32(text) == checksum else None


_MODEL_ID_BYTES = 256
#: The counter comes first: a futex needs four aligned bytes.
_COUNTER_BYTES = 4
_RECORD = struct.Struct(f"<IH{_MODEL_ID_BYTES}s")
