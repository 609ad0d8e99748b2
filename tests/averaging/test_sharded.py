"""Models of FSDP2: each rank averages its shards with the ranks that have the same ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from members import join
from thread_ranks import group_of
from torch import nn
from torch.distributed.fsdp import fully_shard

from softs_fast.averaging import AverageAll, DiLoCo
from softs_fast.errors import ConfigError


def net() -> nn.Module:
    # One rank has no row of the last layer.
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator))
    return model


def train(model: nn.Module, step: Callable[[], Any]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        model(torch.randn(8, 3, generator=generator)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        step()


def diloco(model: nn.Module, strategy: Any) -> DiLoCo:
    return DiLoCo(model, strategy, every=2, lr=0.7, momentum=0.5)


def trains_shards(say: Callable[[Any], None], rank: int, size: int, folder: str) -> dict[str, Any]:
    store = dist.FileStore(f"{folder}.store", size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    model = fully_shard(net())
    with join(0, 1, f"{folder}/{rank}") as alone, join(rank, size, f"{folder}/all") as all_ranks:
        train(model, diloco(model, alone).step)
        for averager in (diloco, AverageAll):
            with pytest.raises(
                ConfigError, match=r'"0\.bias": .*, shard S\(0\) 0/2 on rank 0; .* same shard$'
            ):
                averager(model, all_ranks).average()  # type: ignore[operator]
    state = {name: weight.full_tensor().tolist() for name, weight in model.state_dict().items()}
    dist.destroy_process_group()
    return state


def test_shards_take_the_outer_steps_of_the_whole_model(tmp_path: Path) -> None:
    told = ranks.run(trains_shards, 2, str(tmp_path / "meet"))
    whole = net()
    train(whole, diloco(whole, group_of(1)[0]).step)
    for found in told:
        for name, weight in whole.state_dict().items():
            torch.testing.assert_close(torch.tensor(found[name]), weight)
