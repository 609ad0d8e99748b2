"""What readers of blocks have in common, wherever the slots are."""

from __future__ import annotations

import torch

from ...market import Client

__all__ = ["Blocks", "Tensors"]

Tensors = dict[str, torch.Tensor]


class Blocks:
    """A block of slots, handed out as a whole or row by row; nothing is copied ahead.

    Args:
        client: Client that has the slots, in blocks of `n_rows`.
        n_rows: Slots per block.
        n_blocks: Number of blocks.
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
