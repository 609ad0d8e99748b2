"""Recordings as a dataset of torch, and as a supplier. Needs torch."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from torch.utils.data import Dataset

from ..configs import BatchConfig
from ..market import Supplier
from .recording import Recording

__all__ = ["RecordedDataset", "replay_supplier"]


class RecordedDataset(Dataset[dict[str, Any]]):
    """Map-style dataset of the samples of a recording, in the order of their numbers; missing numbers are passed over.

    Args:
        folder, **options: Arguments of `Recording`.

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

    def __init__(self, folder: str | os.PathLike[str], **options: Any) -> None:
        self.recording = Recording(folder, **options)

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


def replay_supplier(
    folder: str | os.PathLike[str],
    endpoint: str = "",
    *,
    batch_config: BatchConfig | None = None,
    verify: bool = False,
    cache_bytes: int = 4 << 30,
    **options: Any,
) -> Supplier:
    """Return a supplier, not started, of the product of a recording: an order for a number gets the sample of that number.

    Students give the config of the recording, `Recording.config`. An order for a number that was not recorded fails, and
    the student raises `GeneratorFailed` with the numbers that there are.

    Args:
        folder, batch_config, verify, cache_bytes: The same as for `Recording`.
        endpoint: Backend of the broker, as for `Supplier`.
        **options: Further arguments of `Supplier`, such as `name`.

    Raises:
        ConfigError, DamagedError, OSError: as for `Recording`.
    """
    recording = Recording(folder, batch_config=batch_config, verify=verify, cache_bytes=cache_bytes)

    # One by one: of a batch all samples fail with one that was not recorded.
    def generate(product_id: str, sequence: int) -> dict[str, Any]:
        return recording.samples([sequence])[0]

    return Supplier(
        generator_fn=generate,
        product_ids=[re.escape(recording.product)],
        endpoint=endpoint,
        batch_config=recording.config,
        **options,
    )
