"""The engine of NCCL around a stand-in for torch's group: NCCL itself needs a CUDA device, see tests/gpu/test_nccl.py."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from waiting import WATCHDOG_S

from softs_fast.collectives import ReduceOp, TorchStrategy, nccl_engine
from softs_fast.errors import ConfigError, PeerLost


class Work:
    """A call that NCCL has in its queue: only a wait with a time waits for its end."""

    def __init__(self, group: Group, work: Any, name: str) -> None:
        self._group = group
        self._work = work
        # The comparison of calls before it goes through.
        self._may_be_stuck = name == "allreduce"

    def wait(self, timeout: timedelta) -> None:
        """Wait for the end; a call that was aborted looks complete."""
        assert timeout > timedelta(0)
        if self._group.is_stuck and self._may_be_stuck:
            self._group.is_waiting.set()
            assert self._group.is_aborted.wait(WATCHDOG_S)
            return
        self._work.wait()


class Group:
    """Has the methods of ProcessGroupNCCL, and gloo's effects."""

    made: ClassVar[list[Group]] = []

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
        self.is_stuck = False
        self.is_waiting, self.is_aborted = threading.Event(), threading.Event()
        self.n_aborts = 0
        self.made.append(self)

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._gloo, name)
        if name in ("rank", "size"):
            return call
        return lambda *arguments: Work(self, call(*arguments), name)

    def abort(self) -> None:
        """End pending calls."""
        self.n_aborts += 1
        self.is_aborted.set()


@pytest.fixture
def strategy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> TorchStrategy:
    """A strategy of one rank over the stand-in."""
    monkeypatch.setattr(dist, "ProcessGroupNCCL", Group)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(nccl_engine, "_DEVICE", "cpu")
    monkeypatch.setattr(Group, "made", [])
    store = dist.FileStore(str(tmp_path / "store"), 1)
    return TorchStrategy(nccl_engine.NcclEngine.join(0, 1, store, name="test", timeout_s=WATCHDOG_S))


def test_calls_wait_for_their_end_on_the_device(strategy: TorchStrategy) -> None:
    gradients = {"a": torch.ones(3), "b": torch.full((2,), 4.0)}
    strategy.all_reduce_gradients(gradients, ReduceOp.MEAN)
    strategy.broadcast_tensor(gradients["a"], 0)
    strategy.barrier()
    assert gradients["b"].tolist() == [4.0, 4.0]
    strategy.close()
    assert Group.made[0].n_aborts == 1


def test_a_call_that_is_aborted_is_lost_though_it_looks_complete(strategy: TorchStrategy) -> None:
    [group] = Group.made
    group.is_stuck = True

    def end() -> None:
        assert group.is_waiting.wait(WATCHDOG_S)
        strategy.give_up("epoch 3 is over")

    other = threading.Thread(target=end)
    other.start()
    with pytest.raises(PeerLost, match="epoch 3 is over"):
        strategy.all_reduce(torch.ones(3))
    other.join()
    with pytest.raises(PeerLost, match="epoch 3 is over"):
        strategy.barrier()
    strategy.give_up("again")
    strategy.close()
    assert group.n_aborts == 1


def test_without_a_device(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this host has a CUDA device")
    store = dist.FileStore(str(tmp_path / "store"), 1)
    with pytest.raises(ConfigError, match="NCCL needs a CUDA device"):
        nccl_engine.NcclEngine.join(0, 1, store, name="test", timeout_s=WATCHDOG_S)
