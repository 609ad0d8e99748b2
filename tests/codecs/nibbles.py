"""A codec as a user writes it: two whole numbers from 0 to 15 per byte, times a step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from softs_fast import ConfigError, WireError
from softs_fast.codecs import CustomCodec, register_codec

__all__ = ["MARK", "Nibbles"]

#: The first byte of each tensor; another one is nothing that the codec writes.
MARK = 0xA5


@register_codec
@dataclass(frozen=True)
class Nibbles(CustomCodec):
    """Stores floats that are multiples of `step`."""

    name: ClassVar[str] = "nibbles"
    step: float = 1.0

    @property
    def parameters(self) -> str:
        return repr(self.step)

    @classmethod
    def from_parameters(cls, parameters: str) -> Nibbles:
        return cls(float(parameters))

    def nbytes(self, shape: tuple[int, ...], dtype: str) -> int:
        if not dtype.startswith("float"):
            raise ConfigError(f"nibbles stores floats, not {dtype}")
        return 1 + (math.prod(shape) + 1) // 2

    def encode(self, values: Tensor) -> Tensor:
        digits = (values.reshape(len(values), -1) / self.step).to(torch.int64)
        if ((digits < 0) | (digits > 15)).any():
            raise ConfigError(f"nibbles stores 0 to 15 times {self.step}")
        pairs = torch.nn.functional.pad(digits, (0, digits.shape[1] % 2)).unflatten(1, (-1, 2))
        mark = torch.full((len(digits), 1), MARK)
        return torch.cat([mark, pairs[..., 0] * 16 + pairs[..., 1]], 1).to(torch.uint8)

    def decode(self, data: Tensor, shape: tuple[int, ...], dtype: str) -> Tensor:
        if (data[:, 0] != MARK).any():
            raise WireError(f"a row begins with {data[:, 0].tolist()}, not {MARK}")
        digits = torch.stack([data[:, 1:] >> 4, data[:, 1:] & 15], -1).flatten(1)[:, : math.prod(shape)]
        return (digits * self.step).to(getattr(torch, dtype)).view(len(data), *shape)
