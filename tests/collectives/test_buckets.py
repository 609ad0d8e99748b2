"""Buckets: tensors that live in memory of all ranks."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch

from softs_fast.collectives import ReduceOp, Schedule, ShmStrategy
from softs_fast.errors import ConfigError

SCHEDULE = Schedule(1 << 15, 1 << 16)


def mixed(say: Callable[[Any], None], rank: int, size: int, folder: str, private: bool) -> None:
    specs = {
        "weight": torch.empty(33, 7),
        "half": ((1001,), torch.bfloat16),
        "count": ((5,), torch.int64),
        "scalar": ((), torch.float32),
        "nothing": ((0, 4), torch.float32),
    }
    with ShmStrategy(timeout_s=20, schedule=SCHEDULE).init(rank, size, folder) as strategy:
        bucket = strategy.bucket(specs, private=private)
        assert {name: tuple(view.shape) for name, view in bucket.views.items()} == {
            "weight": (33, 7),
            "half": (1001,),
            "count": (5,),
            "scalar": (),
            "nothing": (0, 4),
        }
        for step in range(20):
            for op in ReduceOp:
                for view in bucket.views.values():
                    view.fill_(rank * 2 + step % 5)
                results = bucket.all_reduce(op)
                brought = [other * 2 + step % 5 for other in range(size)]
                wanted = {
                    "sum": sum(brought),
                    "mean": sum(brought) / size,
                    "min": min(brought),
                    "max": max(brought),
                }[op]
                for name, result in results.items():
                    target = int(wanted) if name == "count" else wanted
                    assert torch.allclose(result, torch.tensor(target).to(result.dtype)), (name, op, step)
                if not private:
                    assert bucket.views["weight"].eq(brought[rank]).all(), "what was brought stays"


@pytest.mark.parametrize(("size", "private"), [(1, True), (3, True), (3, False)])
def test_reduced_where_they_lie(tmp_path: Path, size: int, private: bool) -> None:
    ranks.run(mixed, size, str(tmp_path), private)


def refused(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    dense = torch.ones(4)
    with ShmStrategy(timeout_s=20, schedule=SCHEDULE).init(rank, size, folder) as strategy:
        for odd in (
            dense.to_sparse(),
            torch.quantize_per_tensor(dense, 1.0, 0, torch.qint8),
            dense.to(torch.complex64),
        ):
            with pytest.raises(ConfigError, match="odd"):
                strategy.bucket({"good": dense, "odd": odd if rank else dense})
        assert strategy.bucket({"good": dense}).all_reduce()["good"].shape == (4,)


def test_what_a_bucket_cannot_hold_is_named_on_all_ranks(tmp_path: Path) -> None:
    ranks.run(refused, 2, str(tmp_path))


def autograd(say: Callable[[Any], None], rank: int, size: int, folder: str) -> list[float]:
    torch.manual_seed(0)
    net = torch.nn.Linear(20, 3)
    with ShmStrategy(timeout_s=20, schedule=SCHEDULE).init(rank, size, folder) as strategy:
        bucket = strategy.bucket(dict(net.named_parameters()))
        for name, parameter in net.named_parameters():
            parameter.grad = bucket.views[name]
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(rank)
        for _ in range(5):
            optimizer.zero_grad(set_to_none=False)
            net(torch.randn(8, 20, generator=generator)).square().mean().backward()
            bucket.all_reduce("mean")
            optimizer.step()
    return net.weight.flatten().tolist()


def test_gradients_can_live_there(tmp_path: Path) -> None:
    first, second = ranks.run(autograd, 2, str(tmp_path))
    assert first == second
    # The same on one rank, with the mean of both ranks' losses.
    torch.manual_seed(0)
    net = torch.nn.Linear(20, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    generators = [torch.Generator().manual_seed(rank) for rank in range(2)]
    for _ in range(5):
        optimizer.zero_grad()
        losses = [net(torch.randn(8, 20, generator=generator)).square().mean() for generator in generators]
        (sum(losses) / 2).backward()
        optimizer.step()
    assert torch.allclose(torch.tensor(first), net.weight.flatten().detach(), atol=1e-6)


@pytest.mark.parametrize("private", [True, False])
def test_autograd_refuses_values_from_before_a_reduction(tmp_path: Path, private: bool) -> None:
    with ShmStrategy(schedule=SCHEDULE).init(0, 1, tmp_path) as strategy:
        bucket = strategy.bucket({"a": ((2,), torch.float32), "b": ((2,), torch.float32)}, private=private)
        weight = torch.ones(2, requires_grad=True)
        loss = (weight * bucket.all_reduce()["b"]).sum()
        loss.backward(retain_graph=True)
        bucket.all_reduce()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def mapped() -> int:
    return sum("/dev/shm/" in line for line in Path("/proc/self/maps").read_text().splitlines())


def comes_and_goes(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    before = mapped()
    strategy = ShmStrategy(timeout_s=20, schedule=SCHEDULE).init(rank, size, folder)
    assert mapped() == before + 1
    bucket = strategy.bucket({"w": ((1000,), torch.float32)})
    view = bucket.views["w"][3:]
    assert mapped() == before + 2
    strategy.barrier()
    strategy.close()
    del strategy, bucket
    gc.collect()
    view.fill_(1)
    assert mapped() == before + 1, "a view keeps its bucket"
    del view
    gc.collect()
    assert mapped() == before


def test_memory_goes_back_with_its_last_view(tmp_path: Path) -> None:
    ranks.run(comes_and_goes, 2, str(tmp_path))


def streamed(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    with ShmStrategy(timeout_s=20, schedule=SCHEDULE).init(rank, size, folder) as strategy:
        bucket = strategy.bucket({"w": ((3_000_001,), torch.float32)}, private=False)
        for stream in (False, True):
            bucket._stream = stream
            bucket.views["w"].fill_(rank + 1)
            assert bucket.all_reduce("sum")["w"].eq(3).all()
            strategy.barrier()


def test_results_stored_past_the_caches(tmp_path: Path) -> None:
    ranks.run(streamed, 2, str(tmp_path))
