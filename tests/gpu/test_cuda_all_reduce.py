"""All-reduce on CUDA devices: the bits of the reduce kernels, on every rank, whatever the way."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
from side_streams import SideStream

from softs_fast import kernels
from softs_fast.collectives import CudaStrategy, OpMetrics, Schedule
from softs_fast.errors import ConfigError
from softs_fast.gpu.checks import reduce
from softs_fast.gpu.checks.all_reduce import (
    ONE_SHOT,
    STAGING,
    TWO_SHOT,
    device_of,
    joined,
    reduces_everything,
)
from softs_fast.gpu.checks.expect import same_bits
from softs_fast.gpu.checks.on_device import to_device
from softs_fast.gpu.checks.values import DTYPES, expected, values

Say = Callable[[Any], None]


@pytest.mark.parametrize("in_dtype", DTYPES)
def test_one_launch_has_the_bits_of_the_host(in_dtype: torch.dtype) -> None:
    """Every combination of the kernel, by one process, at every alignment."""
    assert reduce.check_dtype(in_dtype) > 0


@pytest.mark.parametrize("schedule", [ONE_SHOT, TWO_SHOT], ids=["one-shot", "two-shot"])
@pytest.mark.parametrize("size", [1, 3])
def test_all_dtypes_and_casts_have_the_bits_of_the_host(
    tmp_path: Path, size: int, schedule: Schedule
) -> None:
    ranks.run(reduces_everything, size, str(tmp_path), schedule, False)


@pytest.mark.parametrize("schedule", [ONE_SHOT, TWO_SHOT], ids=["one-shot", "two-shot"])
def test_waits_in_the_kernel_leave_the_bits(tmp_path: Path, schedule: Schedule) -> None:
    """They do not depend on the dtype."""
    ranks.run(reduces_everything, 4, str(tmp_path), schedule, True, [torch.float32])


def reduces_large_and_odd(say: Say, rank: int, size: int, folder: str, in_kernel: bool) -> None:
    device = device_of(rank)
    with joined(rank, size, folder, Schedule(1 << 14, STAGING), in_kernel=in_kernel) as strategy:
        # More than the staging holds, which bounds the wider of both sides.
        for dtype, out, count in [
            (torch.float32, torch.float32, 2 * STAGING // 4 + 12_345),
            (torch.bfloat16, torch.float32, STAGING // 2 + 1),
            (torch.uint8, torch.float64, STAGING // 4 + 3),
            (torch.float32, torch.float32, 0),
        ]:
            tensor = to_device(values(rank, dtype, count), device)
            output = tensor if out is dtype else to_device(torch.zeros(count, dtype=out), device)
            strategy.all_reduce(tensor, output=output)
            strategy.synchronize()
            assert same_bits(output, expected(size, dtype, count, "sum", out)), (dtype, count)
        # Off the alignment, by another amount on every rank; and not contiguous.
        for count in (70, 9001):
            whole = to_device(torch.zeros(count + 8), device)
            part = whole[1 + rank : 1 + rank + count]
            part.copy_(values(rank, torch.float32, count))
            strategy.all_reduce(part)
            strategy.synchronize()
            assert same_bits(part.clone(), expected(size, torch.float32, count, "sum", torch.float32))
            assert not whole[: 1 + rank].any()
            assert not whole[1 + rank + count :].any()
        columns = to_device(torch.zeros(40, 3), device)[:, 1]
        columns.copy_(torch.arange(40) * (rank + 1))
        strategy.all_reduce(columns)
        strategy.synchronize()
        assert columns.cpu().tolist() == [i * sum(range(1, size + 1)) for i in range(40)]


@pytest.mark.parametrize("in_kernel", [False, True])
def test_large_odd_and_strided_tensors(tmp_path: Path, in_kernel: bool) -> None:
    ranks.run(reduces_large_and_odd, 3, str(tmp_path), in_kernel)


def travels_narrow(say: Say, rank: int, size: int, folder: str) -> None:
    device = device_of(rank)
    with joined(rank, size, folder) as strategy:
        tensor = to_device(values(rank, torch.float32, 5000), device)
        strategy.all_reduce(tensor, "mean", scale=2.0, staged=torch.bfloat16)
        strategy.synchronize()
        wanted = torch.empty(5000)
        narrow = [values(other, torch.float32, 5000).bfloat16() for other in range(size)]
        kernels.reduce(narrow, wanted, "mean", scale=2.0)
        assert same_bits(tensor, wanted)
        with pytest.raises(ConfigError, match="only floats travel"):
            strategy.all_reduce(tensor, staged=torch.int8)
        with pytest.raises(ConfigError, match="floats go to floats"):
            strategy.all_reduce(tensor, output=tensor.int())
        with pytest.raises(ConfigError, match="mean of bool"):
            strategy.all_reduce(tensor.bool(), "mean")
        with pytest.raises(ConfigError, match="same shape"):
            strategy.all_reduce(tensor, output=tensor[1:])
        with pytest.raises(ConfigError, match="dense"):
            strategy.all_reduce(torch.zeros(3).to_sparse())
        with pytest.raises(ConfigError, match=rf"host's memory; need CUDA device {device}, or ShmStrategy"):
            strategy.all_reduce(torch.zeros(3))


def test_floats_travel_as_narrower_ones(tmp_path: Path) -> None:
    ranks.run(travels_narrow, 2, str(tmp_path))


def reduces_gradients(
    say: Say, rank: int, size: int, folder: str, schedule: Schedule, in_kernel: bool
) -> None:
    device = device_of(rank)
    with joined(rank, size, folder, schedule, in_kernel=in_kernel) as strategy:
        shapes = {f"p{i}": (i, 7) for i in range(1, 90)} | {"empty": (0,), "one": (), "large": (300_000,)}
        own = {
            name: to_device(torch.full(shape, (rank + 1) * (i + 1.0)), device)
            for i, (name, shape) in enumerate(shapes.items())
        }
        own["whole"] = to_device(torch.tensor([rank, 10]), device)
        own["turned"] = to_device(torch.zeros(30, 20), device).T
        own["turned"].copy_(torch.arange(600).view(20, 30) * (rank + 1))
        # Another order on every rank.
        strategy.all_reduce_gradients(dict(sorted(own.items(), key=lambda item: hash((item[0], rank)))))
        strategy.synchronize()
        mean = (size + 1) / 2
        for i, (name, shape) in enumerate(shapes.items()):
            assert torch.equal(own[name].cpu(), torch.full(shape, mean * (i + 1))), name
        assert own["whole"].tolist() == [(size - 1) // 2, 10]
        assert torch.equal(own["turned"].cpu(), torch.arange(600).view(20, 30) * mean)
        strategy.all_reduce_gradients({})
        strategy.all_reduce_gradients({"unused": None, "one": own["one"]})
        strategy.all_reduce_gradients({"unused": None})


@pytest.mark.parametrize(("schedule", "in_kernel"), [(TWO_SHOT, False), (ONE_SHOT, True)])
def test_gradients_are_matched_by_name(tmp_path: Path, schedule: Schedule, in_kernel: bool) -> None:
    ranks.run(reduces_gradients, 3, str(tmp_path), schedule, in_kernel)


def does_the_others(say: Say, rank: int, size: int, folder: str) -> dict[str, OpMetrics]:
    device = device_of(rank)
    with joined(rank, size, folder) as strategy:
        for n in (0, 1, 33, 200_000):
            tensor = torch.arange(size * n) * (rank + 1)
            output = to_device(torch.zeros(n, dtype=torch.int64), device)
            strategy.reduce_scatter(output, to_device(tensor, device))
            strategy.synchronize()
            wanted = torch.arange(size * n)[rank * n : (rank + 1) * n] * sum(range(1, size + 1))
            assert torch.equal(output.cpu(), wanted)

            whole = to_device(torch.zeros(size * n, dtype=torch.int16), device)
            own = whole[rank * n : (rank + 1) * n]
            own.copy_(torch.arange(n) % 100 + 100 * rank)
            strategy.all_gather(whole, own)
            strategy.synchronize()
            parts = [torch.arange(n) % 100 + 100 * other for other in range(size)]
            assert torch.equal(whole.cpu(), torch.cat(parts).short())

            for root in range(size):
                tensor = to_device(values(rank, torch.float32, n), device)
                strategy.broadcast_tensor(tensor, root)
                strategy.synchronize()
                assert same_bits(tensor, values(root, torch.float32, n))
        strategy.barrier()
        metrics = dict(strategy.metrics)
        with pytest.raises(ConfigError, match="root is 3"):
            strategy.broadcast_tensor(tensor, 3)
        with pytest.raises(ConfigError, match="one part of equal size per rank"):
            strategy.reduce_scatter(tensor, tensor)
        with pytest.raises(ConfigError, match="one part of equal size per rank"):
            strategy.all_gather(tensor, tensor)
        assert (strategy.rank, strategy.size, strategy.device) == (rank, size, device)
        assert strategy.metrics["broadcast"].errors == 1
        return metrics


def test_reduce_scatter_all_gather_broadcast_barrier(tmp_path: Path) -> None:
    told = ranks.run(does_the_others, 3, str(tmp_path))
    # One rank may always be the last to come.
    assert sum(metrics["all_gather"].waiting_s for metrics in told) > 0
    for metrics in told:
        assert metrics["broadcast"].n_calls == 12
        assert metrics["reduce_scatter"].bytes == 3 * 8 * (1 + 33 + 200_000)
        assert metrics["barrier"].n_calls == 1
        assert metrics["all_gather"].seconds >= metrics["all_gather"].waiting_s >= 0


def probes(say: Say, rank: int, size: int, folder: str) -> Schedule:
    with CudaStrategy(device=device_of(rank), staging_bytes=STAGING).init(rank, size, folder) as strategy:
        tensor = to_device(torch.ones(10), device_of(rank))
        with SideStream(device_of(rank))():
            strategy.all_reduce(tensor)
            strategy.synchronize()
        assert tensor.cpu().tolist() == [size] * 10
        return strategy.schedule


def test_all_ranks_choose_the_same_schedule(tmp_path: Path) -> None:
    chosen = ranks.run(probes, 3, str(tmp_path))
    assert chosen[0] == chosen[1] == chosen[2]
    assert chosen[0].chunk_bytes == STAGING
