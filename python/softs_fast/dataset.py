"""The student's side in PyTorch: an endless dataset of samples, its DataLoader, and batches of slots."""

from .data_loader import SoftDataLoader
from .iterable_dataset import SoftIterableDataset
from .slot_batches import Batch, make_collate_fn

__all__ = ["Batch", "SoftDataLoader", "SoftIterableDataset", "make_collate_fn"]
