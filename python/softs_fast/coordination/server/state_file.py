"""The state file of a coordinator: what it must know again after a restart.

A log of the room `durable`, of kind "coordinator"; each record is a StateRecord of coordinator.proto. A record is on disk
before anything that follows from it is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...durable import Lock, Log
from ...errors import ConfigError, SoftsError, WireError
from ..job.events import Booted, StateRecord
from ..wire.formats import MAX_TABLE_BYTES, RECORDS

__all__ = ["StateFile"]

#: No file of ours is longer: it is replaced when it has four times the bytes of its last replacement.
_MAX_BYTES = 16 * MAX_TABLE_BYTES


class StateFile:
    """A state file, locked for this process by a file beside it.

    Args:
        path: Path of the file, which is made if it does not exist.
        job: Name of the job.

    Attributes:
        records: Records that were in the file.
        dropped: Bytes at the end of the file that were no whole record, because the coordinator before was cut short.

    Raises:
        ConfigError: another coordinator uses it, it is of another job or of another user, or it is damaged.
        SoftsError: the operating system refused it.
    """

    def __init__(self, path: Path, job: str) -> None:
        what = f"state file {path}"
        try:
            lock = Lock(path.with_name(path.name + ".lock"), what)
        except OSError as error:
            raise SoftsError(f"{what}: {error.strerror or error}") from None
        self._log = Log(path, "coordinator", most_bytes=_MAX_BYTES, what=what, lock=lock)
        try:
            self.records = [_decoded(body, what) for body in self._log.records]
            self.dropped = self._log.dropped
            booted = next((record for record in self.records if isinstance(record, Booted)), None)
            if booted is not None and booted.job != job:
                raise ConfigError(
                    f'{what} is of job "{booted.job}"; this is the coordinator of "{job}", which needs a file of its own'
                )
        except BaseException:
            self._log.close()
            raise

    @property
    def needs_compacting(self) -> bool:
        """Whether `compact` is due."""
        return self._log.needs_compacting

    def append(self, record: StateRecord) -> None:
        """Write a record durably.

        Raises:
            SoftsError: it cannot be written; the file is as before.
        """
        self._log.append(RECORDS.encode(record))

    def compact(self, records: Sequence[StateRecord]) -> None:
        """Replace the contents, at once or not at all.

        Raises:
            SoftsError: the new file cannot be written.
        """
        self._log.replace([RECORDS.encode(record) for record in records])

    def close(self) -> None:
        """Release the file."""
        self._log.close()


def _decoded(body: bytes, what: str) -> StateRecord:
    try:
        return RECORDS.decode(body)
    except WireError as error:
        raise ConfigError(f"{what} has a record of another version: {error}; use another file") from None
