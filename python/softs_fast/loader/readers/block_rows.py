"""Samples one by one from blocks of slots."""

from __future__ import annotations

from .blocks import Tensors
from .device import DeviceBlockReader
from .views import BlockReader

__all__ = ["BlockRows"]


class BlockRows:
    """The samples of one block after the other.

    Args:
        blocks: reads the blocks.

    Attributes:
        blocks: the same.
        rows: the samples of the last block that were not handed out, `{name: dtype [*shape]}` each, last one first.
    """

    def __init__(self, blocks: BlockReader | DeviceBlockReader) -> None:
        self.blocks = blocks
        self.rows: list[Tensors] = []

    def forget(self) -> None:
        """Drop the samples that were not handed out."""
        self.rows.clear()

    def split(self) -> None:
        """Make rows of the block that was read; none may be left of the one before."""
        block = self.blocks.take()
        self.rows.extend(
            {name: tensor[i] for name, tensor in block.items()} for i in reversed(range(self.blocks.n_rows))
        )
