"""The student's side in PyTorch: an endless dataset of samples, its DataLoader, and batches of slots."""

from .loader import Batch, SoftDataLoader, SoftIterableDataset, make_collate_fn

__all__ = ["Batch", "SoftDataLoader", "SoftIterableDataset", "make_collate_fn"]
