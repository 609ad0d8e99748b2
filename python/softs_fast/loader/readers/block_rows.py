"""Samples one by one from blocks of slots."""

from __future__ import annotations

from .blocks import Tensors
from .device import DeviceBlockReader
from .views import BlockReader

__all__ = ["BlockRows", "rows_of"]


class BlockRows:
    """Reads the samples of one block after the other.

    Args:
        blocks: reads the blocks.
    """

    n_rows = 1

    def __init__(self, blocks: BlockReader | DeviceBlockReader) -> None:
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
