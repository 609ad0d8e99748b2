"""A supplier that serves a recording to loaders as the teachers did."""

from __future__ import annotations

import os
import re
from typing import Any

from ..configs import BatchConfig
from ..market import Supplier
from .recording import Recording

__all__ = ["replay_supplier"]


def replay_supplier(
    folder: str | os.PathLike[str],
    endpoint: str = "",
    *,
    batch_config: BatchConfig | None = None,
    verify: bool = False,
    **options: Any,
) -> Supplier:
    """Return a supplier, not started, of the product of a recording: an order for a number gets the sample of that number.

    Students give the config of the recording, `Recording.config`. An order for a number that was not recorded fails, and
    the student raises `GeneratorFailed` with the numbers that there are.

    Args:
        folder, batch_config, verify: The same as for `Recording`.
        endpoint: Backend of the broker, as for `Supplier`.
        **options: Further arguments of `Supplier`, such as `name`.

    Raises:
        ConfigError, DamagedError, OSError: as for `Recording`.
    """
    recording = Recording(folder, batch_config=batch_config, verify=verify)

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
