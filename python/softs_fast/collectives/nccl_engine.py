"""NCCL connections of its own, which another thread can end: for calls that must have ended before their effects count."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Self

import torch
import torch.distributed as dist

from softs_fast.collectives.group_engine import GroupEngine
from softs_fast.collectives.reasons import Reasons
from softs_fast.collectives.rendezvous import TorchStore
from softs_fast.errors import ConfigError, PeerLost

_DEVICE = "cuda"


class NcclEngine(GroupEngine):
    """A group of NCCL, of which each call has ended on the device, without an error, when it returns.

    torch's own calls return as soon as the device has them in its queue, so a lost rank would be noticed only after the
    gradients have been applied.

    Args:
        group: Process group of NCCL; it belongs to the engine.
        timeout_s: Seconds to wait for the slowest rank in each call.
        reasons: Place where a rank that gives up tells the others why; None if there is none.
    """

    def __init__(self, group: Any, timeout_s: float, reasons: Reasons | None = None) -> None:
        super().__init__(group, _DEVICE, reasons)
        self._timeout = timedelta(seconds=timeout_s)

    @classmethod
    def join(cls, rank: int, size: int, store: dist.Store, *, name: str, timeout_s: float) -> Self:
        """Connect all ranks by NCCL; each uses its current CUDA device, which no other rank has.

        Each call has ended on the device when it returns. `give_up` has torch abort the communicators, which ends the
        calls of this rank only. Tensors of the host are copied there and back.

        Args:
            rank: This process's number.
            size: Number of ranks.
            store: Store in which ranks find each other; no key of it was used by another group.
            name: Name of the group, for texts.
            timeout_s: Seconds to wait for the slowest rank, also in each call.

        Raises:
            ConfigError: this torch has no NCCL, or the host no CUDA device.
            PeerLost: a rank did not join in time.
        """
        if not dist.is_nccl_available():
            raise ConfigError("this torch was built without NCCL; use gloo, or another build of torch")
        if not torch.cuda.is_available():
            raise ConfigError("NCCL needs a CUDA device, and this process has none; use gloo")
        make: Any = dist.ProcessGroupNCCL
        try:
            group = make(store, rank, size, timedelta(seconds=timeout_s))
            engine = cls(group, timeout_s, Reasons(TorchStore(store), "nccl"))
            # Communicators are made by the first call.
            engine.gather(torch.zeros(1, dtype=torch.float32, device="cpu"))
        except RuntimeError as error:
            raise PeerLost(f'no NCCL connections among the {size} ranks of "{name}": {error}') from error
        return engine

    def _end(self) -> None:
        """Have torch abort the communicators: kernels that wait end, and write to no tensor afterwards.

        Each rank must do so; others notice otherwise only after the time-out.
        """
        group, self._group = self._group, None
        if group is not None:
            group.abort()

    def _release(self) -> None:
        # All calls have ended.
        self._end()

    def _wait(self, work: Any) -> None:
        # Without a time, this waits only until the call is in the queue of the device.
        work.wait(self._timeout)
        if self._broken:
            # A call that was aborted ends like one that is complete.
            raise PeerLost(self._broken)

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device)
