"""A recording as a dataset of torch, for a plain DataLoader."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from torch.utils.data import Dataset

from ..configs import BatchConfig
from .recording import Recording

__all__ = ["RecordedDataset"]


class RecordedDataset(Dataset[dict[str, Any]]):
    """Map-style dataset of the samples of a recording, in the order of their numbers; missing numbers are passed over.

    Args:
        folder, batch_config, verify: The same as for `Recording`.

    Attributes:
        recording: The recording.

    Raises:
        ConfigError, DamagedError, OSError: as for `Recording`.

    Example:
        >>> import torch
        >>> from softs_fast import RecordedDataset
        >>> data = RecordedDataset("epoch")  # doctest: +SKIP
        >>> loader = torch.utils.data.DataLoader(data, 32, shuffle=True)  # doctest: +SKIP
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, batch_config: BatchConfig | None = None, verify: bool = False
    ) -> None:
        self.recording = Recording(folder, batch_config=batch_config, verify=verify)

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.recording)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return a sample, `{name: dtype [*shape]}`; a ragged tensor has its own length.

        Raises:
            IndexError: The index is out of range.
            DamagedError, OSError: as for `Recording`.
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return several samples, read together; a DataLoader of torch calls this."""
        return self.recording.samples([int(self.recording.numbers[index]) for index in indices])
