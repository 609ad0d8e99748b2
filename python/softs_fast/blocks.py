"""What readers of blocks have in common, wherever the slots are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .market import Client

if TYPE_CHECKING:
    from .cuda_batches import DeviceBlockReader
    from .zero_copy import BlockReader

__all__ = ["BlockRows", "Blocks", "Tensors"]

Tensors = dict[str, torch.Tensor]


class Blocks:
    """A block of slots, handed out as a whole or row by row; nothing is copied ahead.

    Args:
        client: who has the slots, in blocks of `n_rows`.
        n_rows: slots per block.
        n_blocks: how many blocks there are.
    """

    def __init__(self, client: Client, n_rows: int, n_blocks: int) -> None:
        self.n_rows = n_rows
        self._client = client
        self._n_blocks = n_blocks
        self._batch: Tensors | None = None

    def begin(self, product_id: str) -> None:
        """Nothing: nothing is copied."""

    def forget(self) -> None:
        """Nothing was begun."""

    def take(self) -> Tensors:
        """Hand out the block, `{name: dtype [n_rows, *shape]}`, strided; nothing here refers to it any more."""
        batch, self._batch = self._batch, None
        assert batch is not None
        return batch

    @property
    def is_starved(self) -> bool:
        """Whether nothing can come because the user holds all blocks."""
        return self._client.n_blocks_held >= self._n_blocks


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
