"""What readers of blocks have in common, wherever the slots are, and samples one by one from blocks."""

from __future__ import annotations

import torch

from ...market import Client
from ..sample_iterator import Reader

__all__ = ["BlockRows", "Blocks", "Tensors", "rows_of"]

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


class BlockRows:
    """Reads the samples of one block after the other.

    Args:
        blocks: reads the blocks.
    """

    n_rows = 1

    def __init__(self, blocks: Reader) -> None:
        self._blocks = blocks
        # The samples of the last block that were not handed out, last one first.
        self._rows: list[Tensors] = []

    @property
    def is_starved(self) -> bool:
        """Whether nothing can come because the user holds all blocks."""
        return self._blocks.is_starved

    def begin(self, product_id: str) -> None:
        """Nothing: nothing is copied."""

    def forget(self) -> None:
        """Drop the samples that were not handed out."""
        self._rows.clear()
        self._blocks.forget()

    def fill(self, product_id: str, done: int, timeout_ms: int) -> int:
        """Take a block if no sample of the last one is left; return 1 if there is a sample within timeout_ms."""
        if not self._rows and self._blocks.fill(product_id, 0, timeout_ms):
            self._rows = rows_of(self._blocks.take(), self._blocks.n_rows)[::-1]
        return 1 if self._rows else done

    def take(self) -> Tensors:
        """Hand out a sample, `{name: dtype [*shape]}`, views of a slot."""
        return self._rows.pop()


def rows_of(batch: Tensors, n_rows: int) -> list[Tensors]:
    """Return the samples of a batch, `{name: dtype [*shape]}` each, views of it."""
    return [{name: tensor[i] for name, tensor in batch.items()} for i in range(n_rows)]
