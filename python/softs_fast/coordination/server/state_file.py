"""The state file of a coordinator: what it must know again after a restart.

A log of the room `durable`, of kind "coordinator"; each record is a StateRecord of coordinator.proto. A record is on disk
before anything that follows from it is sent.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from ...durable import Lock, Log
from ...errors import ConfigError, SoftsError, WireError
from ..job.events import Booted, StateRecord
from ..wire.formats import MAX_TABLE_BYTES, RECORDS

__all__ = ["open_state_file"]

#: No file of ours is longer: it is replaced when it has four times the bytes of its last replacement.
_MAX_BYTES = 16 * MAX_TABLE_BYTES


def open_state_file(path: Path, job: str) -> tuple[Log, list[StateRecord]]:
    """Lock a state file for this process, by a file beside it; return its log, and the records that were in it.

    Args:
        path: Path of the file, which is made if it does not exist.
        job: Name of the job.

    Raises:
        ConfigError: another coordinator uses it, it is of another job or of another user, or it is damaged.
        SoftsError: the operating system refused it.
    """
    what = f"state file {path}"
    try:
        lock = Lock(path.with_name(path.name + ".lock"), what)
    except OSError as error:
        raise SoftsError(f"{what}: {error.strerror or error}") from None
    log = Log(path, "coordinator", most_bytes=_MAX_BYTES, what=what, lock=lock)
    with ExitStack() as opened:
        opened.callback(log.close)
        try:
            records = [RECORDS.decode(body) for body in log.records]
        except WireError as error:
            raise ConfigError(f"{what} has a record of another version: {error}; use another file") from None
        booted = next((record for record in records if isinstance(record, Booted)), None)
        if booted is not None and booted.job != job:
            raise ConfigError(
                f'{what} is of job "{booted.job}"; this is the coordinator of "{job}", which needs a file of its own'
            )
        opened.pop_all()
    return log, records
