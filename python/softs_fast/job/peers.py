"""The ranks of a job without a coordinator: those of torch.distributed, which start and end together; or one process."""

from __future__ import annotations

from collections.abc import Callable
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
        group: Group of the ranks, for tensors of the host. None for one process.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.rank, self.size = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))

    @classmethod
    def of_process(cls) -> Self:
        """Return the ranks of torch.distributed if it has several, in a group of their own; a call of all of them."""
        if not cls.are_several():
            return cls()
        # That of the program, encrypted if it is; a program that has one for devices alone gets gloo.
        backends = dict(one.split(":") for one in dist.get_backend_config().split(","))
        group = dist.new_group(backend=backends.get("cpu", "gloo"))
        assert isinstance(group, dist.ProcessGroup)
        return cls(group)

    @staticmethod
    def are_several() -> bool:
        """Return whether torch.distributed has several ranks."""
        return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1

    def texts(self, text: str) -> list[str]:
        """Return the texts of all ranks; a call of all ranks.

        Raises:
            WireError: One is too long.
        """
        if self.group is None:
            return [text]
        data = text.encode()
        lengths = [torch.zeros(1, dtype=torch.int64, device="cpu") for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(data)], device="cpu"), group=self.group)
        n_bytes = [int(one) for one in lengths]
        if not 0 <= min(n_bytes) <= max(n_bytes) <= _MOST_TEXT_BYTES:
            raise WireError(f"ranks announce texts of {n_bytes} bytes; at most {_MOST_TEXT_BYTES}")
        # At least one byte.
        padded = torch.frombuffer(bytearray(data.ljust(max(n_bytes) + 1)), dtype=torch.uint8)
        found = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(found, padded, group=self.group)
        return [one.numpy().tobytes()[:n].decode() for one, n in zip(found, n_bytes, strict=True)]

    def of_first(self, text: str) -> str:
        """Return the text of rank 0; a call of all ranks.

        Raises:
            WireError: One is too long.
        """
        return self.texts(text)[0]

    def largest(self, value: int) -> int:
        """Return the largest of the values of all ranks; a call of all ranks."""
        if self.group is None:
            return value
        found = torch.tensor([value], device="cpu")
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.group)
        return int(found)

    def agree(self, refusal: Exception | None) -> None:
        """Go on if no rank refuses to; a call of all ranks.

        Raises:
            Exception: This rank's refusal; or, as ConfigError, that another rank has one.
        """
        if self.largest(refusal is not None):
            raise refusal or ConfigError("another rank of torch.distributed refuses this; its error says why")

    def together(self, action: Callable[[], object]) -> None:
        """Do something on all ranks; a call of all of them.

        Raises:
            Exception: It has failed here; or, as ConfigError, on another rank.
        """
        failure: Exception | None = None
        try:
            action()
        except Exception as error:
            failure = error
        self.agree(failure)

    def mean(self, value: torch.Tensor) -> None:
        """Replace a number, float32 [], by its mean over all ranks; a call of all ranks."""
        if self.group is not None:
            total = value.cpu()
            dist.all_reduce(total, group=self.group)
            value.copy_(total / self.size)

    def renewed(self) -> Self:
        """Return the same ranks in a new group, in place of this one, in which a call has failed; a call of all ranks."""
        self.close()
        return self if self.group is None else self.of_process()

    def close(self) -> None:
        """Release the group."""
        if self.group is not None and dist.is_initialized():
            dist.destroy_process_group(self.group)
