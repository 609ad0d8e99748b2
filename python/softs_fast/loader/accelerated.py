"""What Accelerate must know of a loader that it takes as it is, and does not make again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset

from ..errors import ConfigError
from .endless import EndlessDataset

__all__ = ["DatasetOfLoader", "reported_epoch"]


class DatasetOfLoader(IterableDataset[Any]):
    """The dataset that a loader with an order or with epochs shows: the attributes of the real one, but no iterators.

    A DataLoader that is made of the real one never ends, and in each worker it begins with the first sample.

    Args:
        dataset: the real one.
    """

    def __init__(self, dataset: EndlessDataset) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        """Refuse to be iterated.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "no other DataLoader can be made of this dataset, as accelerate.skip_first_batches and a Trainer that resumes "
            "do: its loader has the order and the epochs, and a live stream has nothing to skip; leave out "
            "skip_first_batches (for a Trainer: ignore_data_skip=True), and give the loader what its state_dict() was when "
            "the checkpoint was saved: loader.load_state_dict(state)"
        )

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the real dataset."""
        if name == "_dataset":
            # Not there while it is unpickled.
            raise AttributeError(name)
        return getattr(self._dataset, name)


def reported_epoch(loader: object) -> Any:
    """Return what tells Accelerate of one epoch of a loader; None if `Accelerator.prepare` was not given the loader.

    It is to be told `begin()`, `end_of_dataloader = True` with the last batch, and `end()`. Accelerate then ends the
    accumulation of gradients with the last batch. Accelerate drops it once nothing refers to it.
    """
    if "_is_accelerate_prepared" not in vars(loader):
        return None
    from accelerate.data_loader import DataLoaderStateMixin
    from accelerate.state import GradientState

    class Epoch(DataLoaderStateMixin):  # type: ignore[misc]
        gradient_state = GradientState()
        _drop_last = True  # Each batch is whole.

    return Epoch()
