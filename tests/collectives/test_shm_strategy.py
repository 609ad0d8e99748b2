"""ShmStrategy against plain torch: every operation, dtype, size and layout, with every way of working forced."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch

from softs_fast.collectives import ReduceOp, Schedule, ShmStrategy

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
# Of each: everything at once; in parts; in many chunks of parts.
SCHEDULES = (Schedule(1 << 16, 1 << 16), Schedule(0, 1 << 16), Schedule(0, 1 << 12))
SIZES = (0, 1, 15, 17, 1000, 40_003)


def values(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """What a rank brings; NaN and infinities are among the floats."""
    generator = torch.Generator().manual_seed(1000 * rank + count)
    if dtype is torch.bool:
        return torch.rand(count, generator=generator) < 0.5
    if dtype in INTEGERS:
        low = 0 if dtype is torch.uint8 else -100
        return torch.randint(low, 100, (count,), generator=generator).to(dtype)
    tensor = torch.randn(count, generator=generator).to(dtype)
    if count > 5:
        tensor[rank % count] = float("inf")
        tensor[count // 2] = float("nan") if rank == 0 else 1.0
    return tensor


def reduced(tensors: list[torch.Tensor], op: ReduceOp) -> torch.Tensor:
    """The reference: one rank after another, 16-bit floats in float32."""
    dtype = tensors[0].dtype
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    if dtype is torch.bool:
        stacked = torch.stack(tensors)
        return stacked.all(0) if op is ReduceOp.MIN else stacked.any(0)
    if op in (ReduceOp.MIN, ReduceOp.MAX):
        stacked = torch.stack(tensors)
        return stacked.amin(0) if op is ReduceOp.MIN else stacked.amax(0)
    if op is ReduceOp.MEAN and dtype in INTEGERS:
        total = torch.stack(tensors).to(torch.int64).sum(0)
        return torch.div(total, len(tensors), rounding_mode="trunc").to(dtype)
    total = tensors[0].to(wide)
    for tensor in tensors[1:]:
        total = total + tensor.to(wide)
    if op is ReduceOp.MEAN:
        total = total * torch.tensor(1.0 / len(tensors), dtype=wide)
    return total.to(dtype)


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    if left.dtype.is_floating_point:
        return torch.equal(left.isnan(), right.isnan()) and torch.equal(
            left.nan_to_num(7.0), right.nan_to_num(7.0)
        )
    return torch.equal(left, right)


def all_operations(say: Callable[[Any], None], rank: int, size: int, folder: str, schedule: Schedule) -> str:
    """Do everything with everything; returns a hash of all results that must be the same on every rank."""
    results = hashlib.blake2b()
    with ShmStrategy(timeout_s=20, schedule=schedule, staging_bytes=1 << 16).init(
        rank, size, folder
    ) as strategy:
        for dtype in (*FLOATS, *INTEGERS, torch.bool):
            for count in SIZES:
                every = [values(other, count, dtype) for other in range(size)]
                for op in ReduceOp:
                    if dtype is torch.bool and op is ReduceOp.MEAN:
                        continue
                    # One element off any alignment that an allocator gives.
                    memory = torch.empty(count + 1, dtype=dtype)
                    tensor = memory[1:]
                    tensor.copy_(every[rank])
                    strategy.all_reduce(tensor, op)
                    wanted = reduced(every, op)
                    assert same(tensor, wanted), (dtype, count, op)
                    results.update(tensor.view(torch.uint8).numpy().tobytes())

                    parts = [values(other, size * count, dtype) for other in range(size)]
                    part = torch.empty(count, dtype=dtype)
                    strategy.reduce_scatter(part, parts[rank], op)
                    assert same(part, reduced(parts, op)[rank * count : (rank + 1) * count]), (
                        dtype,
                        count,
                        op,
                    )
                gathered = torch.empty(size * count, dtype=dtype)
                strategy.all_gather(gathered, every[rank])
                assert same(gathered, torch.cat(every)), (dtype, count)
                for root in range(size):
                    tensor = every[rank].clone()
                    strategy.broadcast_tensor(tensor, root)
                    assert same(tensor, every[root]), (dtype, count, root)
                strategy.barrier()
        counted = strategy.metrics["all_reduce"]
        assert counted.n_calls == 39 * len(SIZES)
        assert 0 <= counted.waiting_s <= counted.seconds
    return results.hexdigest()


@pytest.mark.parametrize(
    ("size", "schedule"),
    [
        (1, SCHEDULES[0]),
        (2, SCHEDULES[0]),
        (3, SCHEDULES[1]),
        (3, SCHEDULES[2]),
        pytest.param(4, SCHEDULES[1], marks=pytest.mark.full),
    ],
)
def test_results_are_those_of_torch(tmp_path: Path, size: int, schedule: Schedule) -> None:
    hashes = ranks.run(all_operations, size, str(tmp_path), schedule)
    assert len(set(hashes)) == 1, "ranks differ"


def several_groups(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    """All ranks, even and odd ones, and all but the first, all at once."""
    world = ShmStrategy(name="world", schedule=SCHEDULES[0]).init(rank, size, folder)
    half = ShmStrategy(name=f"half{rank % 2}", schedule=SCHEDULES[1]).init(rank // 2, size // 2, folder)
    rest = ShmStrategy(name="rest", schedule=SCHEDULES[2]).init(rank - 1, size - 1, folder) if rank else None
    for _ in range(50):
        for strategy, members in (
            (world, range(size)),
            (half, range(rank % 2, size, 2)),
            (rest, range(1, size)),
        ):
            if strategy is not None:
                tensor = torch.full((2000,), float(rank))
                strategy.all_reduce(tensor)
                assert tensor.eq(sum(members)).all()
    for strategy in (world, half, rest):
        if strategy is not None:
            strategy.close()


def test_subgroups_and_several_groups_at_once(tmp_path: Path) -> None:
    ranks.run(several_groups, 4, str(tmp_path))


def many_small(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    """Past the wrap-around of the epochs, and without any barrier in between."""
    generator = torch.Generator().manual_seed(5)
    with ShmStrategy(schedule=Schedule(1 << 10, 1 << 12)).init(rank, size, folder) as strategy:
        for step in range(1000):
            count = int(torch.randint(1, 4000, (1,), generator=generator))
            tensor = torch.full((count,), float(rank + step))
            if step % 7 == 3:
                strategy.broadcast_tensor(tensor, step % size)
                assert tensor.eq(step % size + step).all()
            else:
                strategy.all_reduce(tensor)
                assert tensor.eq(size * step + sum(range(size))).all(), step


def test_thousands_of_calls_in_a_row(tmp_path: Path) -> None:
    ranks.run(many_small, 3, str(tmp_path))


def measured(say: Callable[[Any], None], rank: int, size: int, folder: str) -> Schedule:
    with ShmStrategy().init(rank, size, folder) as strategy:
        return strategy.schedule


def test_the_probe_decides_the_same_on_every_rank(tmp_path: Path) -> None:
    schedules = ranks.run(measured, 3, str(tmp_path))
    assert len(set(schedules)) == 1
    assert schedules[0].chunk_bytes >= 1 << 16


def large(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    tensor = torch.full(((1 << 31) + 5,), rank + 1, dtype=torch.uint8)
    with ShmStrategy(timeout_s=120).init(rank, size, folder) as strategy:
        strategy.all_reduce(tensor)
    assert int(tensor.min()) == int(tensor.max()) == 3


@pytest.mark.slow
def test_more_than_two_gigabytes(tmp_path: Path) -> None:
    ranks.run(large, 2, str(tmp_path))
