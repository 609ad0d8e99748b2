"""What a loader records of the batches that it hands out."""

from __future__ import annotations

from typing import Any

from ..errors import ConfigError, SoftsError
from ..record import Recorder, RecordOptions
from .endless import EndlessDataset
from .plan import IterationPlan

__all__ = ["RecordingTap"]


class RecordingTap:
    """Records each batch before it is handed out; opens the recording with the first one.

    Args:
        options: Options of the recording.
        dataset: Dataset of the loader.
    """

    def __init__(self, options: RecordOptions, dataset: EndlessDataset) -> None:
        self._options = options
        self._dataset = dataset
        self._recorder: Recorder | None = None

    def check(self, plan: IterationPlan) -> None:
        """Check that the batches of a plan can be recorded.

        Raises:
            ConfigError: They are not tensors by name with a batch axis, on the host at first; the text says what to do.
        """
        if self._dataset.is_on_device:
            raise ConfigError(
                "record needs samples that come to the host, and CudaIpcMedium brings them to a device; use ShmMedium with device="
            )
        if plan.batch_size is None or plan.make_batch is not None:
            raise ConfigError(
                "record needs batches of tensors by name: give a batch_size and leave collate_fn out; a map-style RecordedDataset "
                "takes any collate_fn when the recording is used"
            )

    def __call__(self, product: str, position: int, batch: Any) -> None:
        """Record a batch.

        Args:
            product: Product of the samples.
            position: Samples of it that this rank has handed out before.
            batch: The batch.

        Raises:
            ConfigError, DamagedError, SoftsError, OSError: as for `Recorder`, and its `record`.
        """
        if self._recorder is None:
            data = self._dataset
            ranks = data.ranks()
            self._recorder = Recorder(
                self._options,
                product,
                data.batch_config,
                ordered=data.ordered,
                rank=ranks.rank,
                world_size=ranks.world_size,
            )
        self._recorder.record(product, position, batch)

    def close(self) -> None:
        """Write what is left, and close the recording; a later batch continues it. If this is interrupted, call it again.

        Raises:
            SoftsError: It cannot be written.
        """
        if self._recorder is not None:
            try:
                self._recorder.close()
            except SoftsError:
                self._recorder = None
                raise
            self._recorder = None
