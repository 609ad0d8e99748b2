"""The ranks of a job without a coordinator: those of torch.distributed, which start and end together; or one process."""

from __future__ import annotations

from typing import Self

import torch
import torch.distributed as dist

from ..errors import ConfigError, WireError

__all__ = ["Peers"]

#: Longest text that ranks exchange.
_MOST_TEXT_BYTES = 1 << 20


class Peers:
    """What ranks agree on: before the first step, at the end of each one, and about checkpoints. One process makes no call.

    Args:
        group: Group of the ranks, with gloo: what they agree on is in host memory. None for one process.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.rank, self.size = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))

    @classmethod
    def of_process(cls) -> Self:
        """Return the ranks of torch.distributed if it has several, in a group of their own; a call of all of them."""
        if not cls.are_several():
            return cls()
        group = dist.new_group(backend="gloo")
        assert isinstance(group, dist.ProcessGroup)
        return cls(group)

    @staticmethod
    def are_several() -> bool:
        """Return whether torch.distributed has several ranks."""
        return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1

    def of_first(self, text: str) -> str:
        """Return the text of rank 0; a call of all ranks.

        Raises:
            WireError: It is too long.
        """
        if self.group is None:
            return text
        data = torch.frombuffer(bytearray(text.encode()) or bytearray(1), dtype=torch.uint8)
        n_bytes = torch.tensor([len(text.encode())], device="cpu")
        dist.broadcast(n_bytes, 0, group=self.group)
        if not 0 <= int(n_bytes) <= _MOST_TEXT_BYTES:
            raise WireError(f"rank 0 announces a text of {int(n_bytes)} bytes; at most {_MOST_TEXT_BYTES}")
        if self.rank != 0:
            data = torch.zeros(max(int(n_bytes), 1), dtype=torch.uint8, device="cpu")
        dist.broadcast(data, 0, group=self.group)
        return data.numpy().tobytes()[: int(n_bytes)].decode()

    def largest(self, value: int) -> int:
        """Return the largest of the values of all ranks; a call of all ranks."""
        if self.group is None:
            return value
        found = torch.tensor([value], device="cpu")
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.group)
        return int(found)

    def agree(self, refusal: ConfigError | None) -> None:
        """Go on if no rank refuses to; a call of all ranks.

        Raises:
            ConfigError: This rank's refusal; or another rank has one.
        """
        if self.largest(refusal is not None):
            raise refusal or ConfigError("another rank of torch.distributed refuses this; its error says why")

    def mean(self, value: torch.Tensor) -> None:
        """Replace a number, float32 [], by its mean over all ranks; a call of all ranks."""
        if self.group is not None:
            total = value.cpu()
            dist.all_reduce(total, group=self.group)
            value.copy_(total / self.size)

    def close(self) -> None:
        """Release the group."""
        if self.group is not None and dist.is_initialized():
            dist.destroy_process_group(self.group)
