"""GrpcStrategy: the bits of its results, calls that differ, sizes, memory, metrics, forks."""

from __future__ import annotations

import importlib.util
import random
import resource
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
from fork_check import check_fork
from patience import pings

# Not loaded here: it must be told first that processes fork.
if not importlib.util.find_spec("grpc"):
    pytest.skip("needs the extra grpc", allow_module_level=True)
from softs_fast import kernels
from softs_fast.collectives import Strategy
from softs_fast.coordination import ServerCredentials
from softs_fast.coordination.star import Epoch, GrpcStrategy, StarOptions
from softs_fast.coordination.star.metrics import render_metrics
from softs_fast.errors import ConfigError, PeerLost

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]
#: So small that most tensors have several pieces, and some tensors share one.
SMALL = StarOptions(piece_bytes=4096, pings=pings())
LARGE = StarOptions(pings=pings())


def values(dtype: torch.dtype, n: int, seed: int) -> torch.Tensor:
    """Return values of which the sum depends on the order, if they are floats."""
    maker = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.randint(0, 2, (n,), generator=maker, dtype=dtype)
    if dtype.is_floating_point:
        spread = torch.randint(-6, 6, (n,), generator=maker)
        return (torch.randn(n, generator=maker, dtype=torch.float64) * 2.0**spread).to(dtype)
    low = 0 if dtype is torch.uint8 else -100
    return torch.randint(low, 100, (n,), generator=maker).to(dtype)


def expected(dtype: torch.dtype, n: int, size: int, op: str) -> torch.Tensor:
    result = torch.empty(n, dtype=dtype)
    kernels.reduce([values(dtype, n, rank) for rank in range(size)], result, op)
    return result


def has_the_bits_of_the_kernels(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    with GrpcStrategy(SMALL, timeout_s=20).init(rank, size, folder) as strategy:
        assert isinstance(strategy, Strategy)
        assert (strategy.rank, strategy.size) == (rank, size)
        for dtype in DTYPES:
            for op in ("sum", "min", "max") if dtype is torch.bool else ("sum", "mean", "min", "max"):
                for n in (0, 1, 5_003):
                    tensor = values(dtype, n, rank)
                    strategy.all_reduce(tensor, op)
                    assert same(tensor, expected(dtype, n, size, op)), (dtype, op, n)
                part = torch.empty(700, dtype=dtype)
                strategy.reduce_scatter(part, values(dtype, 700 * size, rank), op)
                assert same(part, expected(dtype, 700 * size, size, op)[700 * rank :][:700]), (dtype, op)
            every = torch.empty(3_001 * size, dtype=dtype)
            strategy.all_gather(every, values(dtype, 3_001, rank))
            assert same(every, torch.cat([values(dtype, 3_001, other) for other in range(size)]))
            for root in range(size):
                tensor = values(dtype, 3_001, rank)
                strategy.broadcast_tensor(tensor, root)
                assert same(tensor, values(dtype, 3_001, root))


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_results_have_the_bits_of_the_kernels(tmp_path: Path, size: int) -> None:
    ranks.run(has_the_bits_of_the_kernels, size, str(tmp_path))


def reduces_gradients_of_several_dtypes(
    say: Callable[[Any], None], rank: int, size: int, folder: str
) -> None:
    names = {f"p{number}": (DTYPES[number % 4], 37 * number) for number in range(40)}
    order = sorted(names)
    with GrpcStrategy(SMALL, timeout_s=20).init(rank, size, folder) as strategy:
        for turn in range(5):
            random.Random(10 * turn + rank).shuffle(order)
            gradients = {name: values(names[name][0], names[name][1], rank + int(name[1:])) for name in order}
            strategy.all_reduce_gradients(gradients)
            for name, (dtype, n) in names.items():
                wanted = torch.empty(n, dtype=dtype)
                rows = [values(dtype, n, other + int(name[1:])) for other in range(size)]
                kernels.reduce(rows, wanted, "mean")
                assert same(gradients[name], wanted), name
        strategy.all_reduce_gradients({})


def test_gradients_in_any_order_and_of_any_dtypes(tmp_path: Path) -> None:
    ranks.run(reduces_gradients_of_several_dtypes, 3, str(tmp_path))


def reduces_what_is_large(say: Callable[[Any], None], rank: int, size: int, folder: str) -> float:
    n = 25 << 20
    with GrpcStrategy(LARGE, timeout_s=30).init(rank, size, folder) as strategy:
        tensor = torch.full((n,), float(rank + 1))
        strategy.barrier()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        strategy.all_reduce(tensor)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert tensor.eq(sum(range(1, size + 1))).all()
        return (after - before) / 1024


def test_a_tensor_of_100_mib_takes_little_more_memory_than_its_own(tmp_path: Path) -> None:
    """gRPC's limit of a message is 4 MiB; 8 pieces of 1 MiB for each other rank, and what gRPC has under way."""
    grown_mib = ranks.run(reduces_what_is_large, 3, str(tmp_path))
    assert max(grown_mib) < 60, grown_mib


def makes_other_calls(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    with GrpcStrategy(SMALL, timeout_s=20).init(rank, size, folder) as strategy:
        for odd in range(size):
            # More pieces than may be sent ahead.
            call = strategy.barrier if rank == odd else partial(strategy.all_reduce, torch.ones(50_000))
            with pytest.raises(ConfigError) as raised:
                call()
            assert f"barrier on rank {odd}" in str(raised.value)
            assert "all_reduce sum of float32 [50000] on rank" in str(raised.value)
            gradients = {"a": torch.ones(3)} if rank == odd else {"a": torch.ones(3), "b": torch.ones(9_000)}
            with pytest.raises(ConfigError, match=f'"b": .*absent on rank {odd}'):
                strategy.all_reduce_gradients(gradients)
            tensor = torch.ones(5_000)
            strategy.all_reduce(tensor)
            assert tensor.eq(size).all()
        with pytest.raises(ConfigError, match="root is 3 in a group of 3"):
            strategy.broadcast_tensor(torch.ones(1), size)
        with pytest.raises(ConfigError, match='operation is "prod"'):
            strategy.all_reduce_gradients({"a": torch.ones(1)}, "prod")
        with pytest.raises(ConfigError, match='argument "tensor" is complex64'):
            strategy.all_reduce(torch.ones(1, dtype=torch.complex64))
        strategy.barrier()


def test_different_calls_are_refused_with_their_ranks_and_the_group_goes_on(tmp_path: Path) -> None:
    ranks.run(makes_other_calls, 3, str(tmp_path))


def counts(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    with GrpcStrategy(LARGE, timeout_s=20).init(rank, size, folder) as strategy:
        assert strategy.metrics == {}
        for _ in range(3):
            strategy.all_reduce(torch.ones(1000))
        with pytest.raises(ConfigError):
            strategy.all_reduce(torch.ones(5 + rank))
        found = strategy.metrics["all_reduce"]
        assert (found.n_calls, found.errors) == (4, 1)
        assert found.bytes == 12_000 + 4 * (5 + rank)
        assert found.seconds >= found.waiting_s > 0
        strategy.barrier()


def test_calls_are_counted(tmp_path: Path) -> None:
    ranks.run(counts, 2, str(tmp_path))


def serves_metrics(say: Callable[[Any], None], rank: int, size: int, folder: str) -> str:
    with GrpcStrategy(LARGE, timeout_s=20).init(rank, size, folder) as star:
        star.all_reduce(torch.ones(100))
        star.all_reduce_gradients({"a": torch.ones(50)})
        text = render_metrics({"main": star})
        star.barrier()
    assert 'collective_joined{strategy="main"} 0' in render_metrics({"main": star})
    return text


def test_rank_0_has_the_bytes_of_each_other_rank(tmp_path: Path) -> None:
    texts = ranks.run(serves_metrics, 3, str(tmp_path))
    for rank, text in enumerate(texts):
        labels = f'strategy="main",rank="{rank}",operation='
        assert f'softs_fast_collective_calls_total{{{labels}"all_reduce"}} 1' in text
        assert f'softs_fast_collective_bytes_total{{{labels}"all_reduce_gradients"}} 200' in text
        assert f'softs_fast_collective_errors_total{{{labels}"all_reduce"}} 0' in text
    for peer in (1, 2):
        for name in ("received", "sent"):
            assert f'softs_fast_star_{name}_bytes_total{{strategy="main",peer="{peer}"}} 600' in texts[0]
        name = f'softs_fast_star_waited_seconds_total{{strategy="main",peer="{peer}"}} '
        assert float(texts[0].partition(name)[2].split()[0]) >= 0.0
    assert 'softs_fast_star_refused_total{strategy="main"} 0' in texts[0]
    assert "peer=" not in texts[1] + texts[2]


def forks(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    with GrpcStrategy(LARGE, timeout_s=20).init(rank, size, folder) as strategy:

        def end() -> None:
            strategy.give_up("a fork")
            strategy.close()

        for _ in range(5):
            check_fork(strategy.barrier, then=end)
            strategy.barrier()


def test_a_fork_of_a_rank_has_no_group_and_does_no_harm(tmp_path: Path) -> None:
    ranks.run(forks, 2, str(tmp_path))


def test_options_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="piece_bytes is 100"):
        StarOptions(piece_bytes=100)
    with pytest.raises(ConfigError, match=r"rank 0 at 0\.0\.0\.0:0 is reachable .* without TLS"):
        StarOptions(listen="0.0.0.0:0")
    named = StarOptions(listen="softs://0.0.0.0:0?token_file=x", advertise="a")
    assert named.listen == "0.0.0.0:0"
    assert named.server.token_file == named.client.token_file == Path("x")
    monkeypatch.setenv("SOFTS_FAST_TOKEN_FILE", "e")
    assert {one.token_file for one in (StarOptions().server, StarOptions().client)} == {Path("e")}
    pem = ServerCredentials(Path("c"), Path("k"))
    assert StarOptions(server=pem).client.token_file is None
    monkeypatch.delenv("SOFTS_FAST_TOKEN_FILE")
    with pytest.raises(ConfigError, match="timeout_s is 0"):
        GrpcStrategy(timeout_s=0)
    with pytest.raises(ConfigError, match="call init first"):
        GrpcStrategy().barrier()
    with pytest.raises(ConfigError, match="rank is 2 in a group of 2"):
        GrpcStrategy().init(2, 2, "nowhere")


@pytest.mark.parametrize("seconds", [0.0, 0.2])
def test_a_fence_ends_the_wait_for_other_ranks(seconds: float) -> None:
    strategy = GrpcStrategy(timeout_s=600.0)
    timer = threading.Timer(seconds, strategy.give_up, args=["a fence"])
    timer.start()
    if not seconds:
        timer.join()
    with pytest.raises(PeerLost, match="a fence"):
        strategy.meet(0, 2, torch.distributed.HashStore(), Epoch(7, 1))
    timer.join()
