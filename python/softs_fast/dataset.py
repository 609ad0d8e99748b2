"""The student's side in PyTorch: an endless dataset of samples, its DataLoader, and batches of slots."""

from .loader.slot_batches import Batch, make_collate_fn
from .loader.soft_dataset import SoftIterableDataset
from .loader.soft_loader import SoftDataLoader

__all__ = ["Batch", "SoftDataLoader", "SoftIterableDataset", "make_collate_fn"]
