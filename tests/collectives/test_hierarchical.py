"""HierarchicalStrategy: nodes of any size, every root, one result on all ranks; and the engines between nodes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import hierarchies
import pytest
import ranks
import torch
import torch.distributed as dist

from softs_fast.collectives import (
    AllReduceStrategy,
    HierarchicalStrategy,
    LinkStrategy,
    ShmStrategy,
    Strategy,
    TorchStrategy,
)
from softs_fast.errors import ConfigError


def joined(
    rank: int, size: int, folder: str, sizes: list[int], timeout_s: float = 20.0
) -> HierarchicalStrategy:
    return hierarchies.joined(rank, hierarchies.in_blocks(sizes), folder, timeout_s)


def everything(strategy: Strategy, rank: int, size: int) -> None:
    """All operations, on several sizes and dtypes, against what they must give."""
    assert (strategy.rank, strategy.size) == (rank, size)
    assert isinstance(strategy, Strategy)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int16):
        for count in (0, 1, 5, 3000):
            # Small whole numbers: exact in every order of summation.
            every = [(torch.arange(count) % 5 + other).to(dtype) for other in range(size)]
            total = torch.stack(every).to(torch.float64).sum(0) if count else torch.empty(0)
            mean = total / size
            for op, wanted in (
                ("sum", total),
                ("mean", mean if dtype.is_floating_point else mean.trunc()),
                ("min", torch.arange(count) % 5),
                ("max", torch.arange(count) % 5 + size - 1),
            ):
                tensor = every[rank].clone()
                strategy.all_reduce(tensor, op)
                # The scale of a mean is rounded, to 16 bits as well.
                tolerance = 2e-2 if dtype is torch.bfloat16 else 1e-6
                assert torch.allclose(tensor.double(), wanted.double(), rtol=tolerance), (dtype, count, op)
            for root in range(size):
                tensor = every[rank].clone()
                strategy.broadcast_tensor(tensor, root)
                assert torch.equal(tensor, every[root]), "the root's, not an earlier one"
            gathered = torch.empty(size, count, dtype=dtype)
            strategy.all_gather(gathered, every[rank])
            assert torch.equal(gathered, torch.stack(every))
            part = torch.empty(count, dtype=dtype)
            strategy.reduce_scatter(part, torch.cat([every[rank]] * size))
            assert torch.equal(part, total.to(dtype))
    flags = torch.tensor([rank == 0, True, False])
    strategy.all_reduce(flags, "max")
    assert flags.tolist() == [True, True, False]
    gradients = {"a": torch.full((3,), float(rank)), "b": torch.full((2, 2), rank, dtype=torch.int64)}
    if rank % 2:
        gradients = dict(reversed(gradients.items()))
    strategy.all_reduce_gradients(gradients)
    assert torch.allclose(gradients["a"], torch.tensor((size - 1) / 2))
    assert gradients["b"].eq((size - 1) // 2).all()
    strategy.all_reduce_gradients({})
    strategy.barrier()
    assert strategy.metrics["barrier"].n_calls == 1
    assert strategy.metrics["all_reduce"].n_calls >= 80
    with pytest.raises(ConfigError, match="root is"):
        strategy.broadcast_tensor(torch.zeros(1), size)
    with pytest.raises(ConfigError, match=r'"w".*float32 \[2\] on rank 1'):
        strategy.all_reduce_gradients({"w": torch.zeros(2 if rank == 1 else 1), "same": torch.zeros(2)})
    strategy.barrier()


def hierarchy(
    say: Callable[[Any], None], rank: int, size: int, folder: str, sizes: list[int]
) -> list[list[int]]:
    with joined(rank, size, folder, sizes) as strategy:
        everything(strategy, rank, size)
        return strategy.nodes


@pytest.mark.parametrize("sizes", [[2, 2], [1, 3], [3, 2], [3]])
def test_nodes_of_any_size(tmp_path: Path, sizes: list[int]) -> None:
    nodes = ranks.run(hierarchy, sum(sizes), str(tmp_path), sizes)
    assert [len(node) for node in nodes[0]] == sizes
    assert all(found == nodes[0] for found in nodes)


def by_links(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    with LinkStrategy(timeout_s=20).init(rank, size, folder) as strategy:
        everything(strategy, rank, size)


def test_the_engine_alone(tmp_path: Path) -> None:
    ranks.run(by_links, 3, str(tmp_path))


def by_process_group(say: Callable[[Any], None], rank: int, size: int, folder: str) -> list[list[int]]:
    """The engine over a group that is there already, alone and between nodes that the same group finds."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=size)
    world = dist.group.WORLD
    with TorchStrategy(world) as engine:
        with pytest.raises(ConfigError, match="does not fit"):
            engine.init(rank, size + 1, None)
        everything(engine.init(rank, size, None), rank, size)
    local = ShmStrategy(timeout_s=20, schedule=hierarchies.SCHEDULE)
    with AllReduceStrategy(local, LinkStrategy(timeout_s=20)).init(rank, size, world) as strategy:
        everything(strategy, rank, size)
        nodes = strategy.nodes
    dist.destroy_process_group()
    return nodes


def test_a_process_group_that_is_there_already(tmp_path: Path) -> None:
    assert ranks.run(by_process_group, 2, str(tmp_path)) == [[[0, 1]]] * 2


def in_chunks(say: Callable[[Any], None], rank: int, size: int, folder: str, sizes: list[int]) -> bytes:
    generator = torch.Generator().manual_seed(rank)
    tensor = torch.randn(2_500_001, generator=generator)
    with joined(rank, size, folder, sizes) as strategy:
        strategy.all_reduce(tensor, "mean")
        every = [
            torch.randn(2_500_001, generator=torch.Generator().manual_seed(other)) for other in range(size)
        ]
        assert torch.allclose(tensor, torch.stack(every).mean(0), atol=1e-6), (
            "the mean over ranks, not over nodes"
        )
        assert strategy.metrics["all_reduce"].waiting_s > 0
    return tensor.numpy().tobytes()[::4096]


def test_large_tensors_go_in_chunks_and_all_ranks_end_with_the_same_bits(tmp_path: Path) -> None:
    assert len(set(ranks.run(in_chunks, 3, str(tmp_path), [2, 1]))) == 1


def wrong_groups(say: Callable[[Any], None], rank: int, size: int, folder: str) -> str:
    local = ShmStrategy(timeout_s=20, schedule=hierarchies.SCHEDULE).init(rank, size, folder)
    with pytest.raises(ConfigError) as raised:
        HierarchicalStrategy(local, None).init(0, size)
    local.close()
    return str(raised.value)


def test_groups_that_make_no_hierarchy_are_refused(tmp_path: Path) -> None:
    assert all("need numbers 0 to 1" in text for text in ranks.run(wrong_groups, 2, str(tmp_path)))
