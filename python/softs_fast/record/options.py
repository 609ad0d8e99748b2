"""Options of a recording."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..errors import ConfigError

__all__ = ["RecordOptions", "record_options"]


@dataclass(frozen=True)
class RecordOptions:
    """Where and how a loader records the samples that it hands out.

    Attributes:
        folder: Folder of the recording; it is made if it does not exist. A recording that is there already is continued.
            Several ranks may share one: each writes a folder of its own inside.
        policy: `"wait"` lets the loader wait for the disk, so that nothing is missing; an error of the disk ends the
            iteration. `"drop"` never waits: batches for which there is no room in memory are left out and counted, also after an
            error of the disk.
        shard_bytes: Bytes of samples per file, 64 to 256 MiB for large recordings.
        buffer_bytes: Memory for samples that wait for the disk, bytes; room for three blocks of 4 MiB or one sample, at least.

    Raises:
        ConfigError: `folder` is no path, the policy is unknown, or a size is below 1.

    Example:
        >>> import softs_fast as sf
        >>> options = sf.RecordOptions("epoch", policy="drop")
    """

    folder: str | os.PathLike[str]
    policy: Literal["wait", "drop"] = "wait"
    shard_bytes: int = 128 << 20
    buffer_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        """Check the values."""
        if not isinstance(self.folder, str | os.PathLike) or not os.fspath(self.folder):
            raise ConfigError(f"record must be the path of a folder or RecordOptions, got {self.folder!r}")
        if "://" in os.fspath(self.folder):
            raise ConfigError(
                f"record needs a folder of this host, got {self.folder!r}; copy the recording to the store once it is closed"
            )
        if self.policy not in ("wait", "drop"):
            raise ConfigError(f'policy must be "wait" or "drop", got {self.policy!r}')
        for name in ("shard_bytes", "buffer_bytes"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST_BYTES:
                raise ConfigError(f"{name} must be a whole number from 1 to {_MOST_BYTES:,}, got {value!r}")

    @property
    def path(self) -> Path:
        """The folder."""
        return Path(self.folder)


def record_options(record: Any) -> RecordOptions | None:
    """Return the options that an argument `record` stands for: a folder, options, or None.

    Raises:
        ConfigError: It is something else.
    """
    return record if record is None or isinstance(record, RecordOptions) else RecordOptions(record)


_MOST_BYTES = 1 << 40
