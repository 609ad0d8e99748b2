"""The functions by which a teacher makes samples."""

from __future__ import annotations

from typing import Any

import torch

from .on_device import to_device, to_device_together
from .samples import CONFIGS, batch, sample

__all__ = ["KINDS", "Maker"]

#: Ways to make samples: one by one or in batches, as tensors or bytes, or into the slot.
KINDS = ("sample", "bytes", "batch", "batch of bytes", "fill", "fill bytes")
#: numpy has no such dtypes.
_ONLY_TORCH = {torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2}


class Maker:
    """The functions that make the samples of one product.

    Args:
        config: name of what a sample is made of.
        where: the tensors are: device, host, array (on the host), mixed.
        device: number of the device.
        wide: floats are to be cast on the way.
    """

    def __init__(self, config: str, where: str, device: int, wide: bool) -> None:
        self.config = CONFIGS[config]
        self._where = where
        self._device = device
        self._wide = wide

    def arguments(self, kind: str) -> dict[str, Any]:
        """Return what a Supplier takes for a kind of KINDS."""
        ways: dict[str, dict[str, Any]] = {
            "sample": {"generator_fn": self.sample, "batch_config": self.config},
            "bytes": {"generator_fn": self.encoded},
            "batch": {"batch_generator_fn": self.batch, "batch_config": self.config, "max_batch": 5},
            "batch of bytes": {"batch_generator_fn": self.batch_of_bytes},
            "fill": {"fill_fn": self.fill, "batch_config": self.config},
            "fill bytes": {"fill_fn": self.fill_bytes},
        }
        return ways[kind]

    def sample(self, product_id: str, sequence: int) -> dict[str, Any]:
        """Return one sample."""
        return self._placed(sample(self.config, sequence, wide=self._wide))

    def encoded(self, product_id: str, sequence: int) -> bytes:
        """Return one sample as bytes."""
        return self.config.encode(**sample(self.config, sequence))

    def batch(self, product_id: str, n: int, sequences: tuple[int, ...]) -> dict[str, Any]:
        """Return several samples, stacked."""
        return self._placed(batch(self.config, list(sequences), wide=self._wide))

    def batch_of_bytes(self, product_id: str, n: int, sequences: tuple[int, ...]) -> list[bytes]:
        """Return several samples, each as bytes."""
        return [self.encoded(product_id, sequence) for sequence in sequences]

    def fill(self, product_id: str, out: dict[str, torch.Tensor], sequence: int) -> None:
        """Write one sample into the tensors of a slot."""
        for name, tensor in sample(self.config, sequence).items():
            out[name].copy_(tensor)

    def fill_bytes(self, product_id: str, out: torch.Tensor, sequence: int) -> None:
        """Write one sample as bytes into a slot."""
        data = bytearray(self.encoded(product_id, sequence))
        out.copy_(torch.frombuffer(data, dtype=torch.uint8))

    def _placed(self, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
        if self._where == "host":
            return tensors
        if self._where == "array":
            return {name: t.numpy() if t.dtype not in _ONLY_TORCH else t for name, t in tensors.items()}
        if self._where == "mixed":
            return {name: to_device(t) if i % 2 else t for i, (name, t) in enumerate(tensors.items())}
        return dict(to_device_together(tensors, self._device))
