"""Where a job writes checkpoints, and how often."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError
from ..loader import whole_number

__all__ = ["Checkpoints"]


@dataclass(frozen=True)
class Checkpoints:
    """Checkpoints of a job: the newest whole one is what the job begins with.

    Attributes:
        folder: Folder of this job alone, which all ranks see. It is made if it does not exist.
        every: Steps from one checkpoint to the next.
        keep: Checkpoints that stay; older ones are deleted once a newer one is durable.
        keep_every: Number of which the step of a checkpoint is a multiple if it stays for ever, beside the last `keep`;
            None for none.

    Raises:
        ConfigError: A number is below 1, `keep_every` is no multiple of `every`, or `folder` is no path.

    Example:
        >>> import softs_fast as sf
        >>> checkpoints = sf.Checkpoints("ckpt", every=50, keep=3)
    """

    folder: str | os.PathLike[str]
    every: int
    keep: int = 3
    keep_every: int | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        if not isinstance(self.folder, str | os.PathLike) or not os.fspath(self.folder):
            raise ConfigError(f"folder must be the path of a folder, got {self.folder!r}")
        whole_number("every", self.every, 1)
        whole_number("keep", self.keep, 1)
        if self.keep_every is not None and whole_number("keep_every", self.keep_every, 1) % self.every:
            raise ConfigError(
                f"keep_every={self.keep_every} is no multiple of every={self.every}: a step that is to stay for ever may have no "
                "checkpoint"
            )

    def stays(self, step: int) -> bool:
        """Return whether the checkpoint of a step stays for ever."""
        return self.keep_every is not None and step % self.keep_every == 0

    @property
    def path(self) -> Path:
        """The folder."""
        return Path(self.folder)
