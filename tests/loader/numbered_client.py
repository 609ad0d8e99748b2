"""A client that makes its samples itself: each says which number of which product's stream it has."""

import weakref
from typing import Any

import numpy as np
import torch
from scripted_client import MadeUpClient

import softs_fast
from softs_fast import NoSupplier, ShmMedium, TensorSpec

CONFIG = softs_fast.BatchConfig([TensorSpec("y", (), "int64"), TensorSpec("x", (2,), "float32")])


class Block(np.ndarray[Any, Any]):
    """The memory of a lease."""


class NumberedClient(MadeUpClient):
    """Serves streams as the native client does with `ordered=True`; products are named by whole numbers."""

    #: At most so many rows come with one call of `gather`.
    at_once = 1000

    def __init__(
        self, endpoint: str, medium_cls: Any, slot_size: int, num_slots: int, *, block: int, **options: Any
    ) -> None:
        assert slot_size == CONFIG.nbytes()
        assert num_slots % block == 0
        super().__init__(options)
        self.medium = ShmMedium(None, slot_size, num_slots, create=True)
        self.slot_count = num_slots
        self.n_blocks_held = 0
        self.before_each: Any = lambda: None
        self.seeks: list[tuple[Any, ...]] = []
        self._block = block
        self._plans: dict[str, tuple[int, int, int]] = {}
        self._positions: dict[str, int] = {}

    def request_sample(self, product_id: str, timeout_ms: int) -> int | None:
        self.medium.write(0, self._next(product_id))
        return 0

    def release_slot(self, slot_id: int) -> None:
        assert slot_id == 0

    def gather(self, product_id: str, n: int, done: int, targets: list[Any], timeout_ms: int) -> int:
        end = min(n, done + self.at_once)
        for row in range(done, end):
            data = np.frombuffer(self._next(product_id), np.uint8)
            for offset, rows in targets:
                width = rows.nbytes // n
                rows[row * width : (row + 1) * width] = data[offset : offset + width]
        return end

    def lease(self, product_id: str, timeout_ms: int) -> Any:
        if (self.n_blocks_held + 1) * self._block > self.slot_count:
            return None
        data = b"".join(self._next(product_id) for _ in range(self._block))
        block = np.frombuffer(bytearray(data), np.uint8).view(Block)
        self.n_blocks_held += 1
        weakref.finalize(block, self._give_back)
        return block

    @property
    def n_numbered(self) -> int:
        return max(self._positions.values(), default=0)

    def position(self, product_id: str) -> int:
        return self._positions.get(product_id, 0)

    def seek(self, product_id: str, start: int, run: int, stride: int, position: int) -> None:
        self.seeks.append((product_id, start, run, stride, position))
        self._plans[product_id] = (start, run, stride)
        self._positions[product_id] = position

    def diagnose(self, product_id: str, waited_s: float) -> NoSupplier:
        return NoSupplier(product_id)

    def close(self) -> None:
        self.medium.close()
        self.medium.unlink()

    def _give_back(self) -> None:
        self.n_blocks_held -= 1

    def _next(self, product_id: str) -> bytes:
        self.before_each()
        start, run, stride = self._plans.get(product_id, (0, 1, 1))
        position = self._positions.get(product_id, 0)
        self._positions[product_id] = position + 1
        first, step = self.options["share"]
        sequence = first + step * (start + position // run * stride + position % run)
        x = torch.tensor([sequence, int(product_id)], dtype=torch.float32)
        return CONFIG.encode(y=torch.tensor(sequence), x=x)


def numbers_of(batch: dict[str, torch.Tensor], product: int = 0) -> list[int]:
    """Return the numbers of the samples in a batch; fails if they are not whole, or of another product."""
    numbers: list[int] = batch["y"].tolist()
    assert batch["x"][:, 0].tolist() == numbers
    assert set(batch["x"][:, 1].tolist()) == {product}
    return numbers
