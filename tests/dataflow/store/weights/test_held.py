"""Which part of a tensor a worker holds, and which workers hold the same: by placements, mesh and layout."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import Partial, Replicate, Shard

import softs_fast.dataflow as df
from softs_fast.dataflow.store.weights.boxes import Box
from softs_fast.dataflow.store.weights.forms import HeldForm
from softs_fast.dataflow.store.weights.held import held_tensors, reshard
from softs_fast.errors import FlowError


class FakeMesh:
    """What is read of a DeviceMesh."""

    def __init__(self, ranks: Any, rank: int, names: tuple[str, ...] | None = None) -> None:
        self.mesh = torch.tensor(ranks)
        self.shape = tuple(self.mesh.shape)
        self.mesh_dim_names = names
        self._rank = rank

    def size(self, dim: int) -> int:
        return self.shape[dim]

    def get_rank(self) -> int:
        return self._rank

    def get_coordinate(self) -> list[int] | None:
        found = (self.mesh == self._rank).nonzero()
        return found[0].tolist() if len(found) else None


@dataclass
class FakeDTensor:
    """What is read of a DTensor."""

    full: Tensor
    device_mesh: FakeMesh
    placements: tuple[Any, ...]
    local: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.full.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.full.dtype

    @property
    def layout(self) -> torch.layout:
        return self.full.layout

    @property
    def ndim(self) -> int:
        return self.full.ndim

    def to_local(self) -> Tensor:
        return self.local


@dataclass(frozen=True)
class Strided:
    """As the placement of FSDP2 for a dimension that is sharded further inside, too."""

    dim: int
    split_factor: int


class Model(df.Role):
    """A role."""


ROLE = df.place(Model, "dp2 tp2", on=[4, 5, 6, 7], name="actor")
FULL = torch.arange(32.0).reshape(8, 4)


def held(
    rank: int, mesh: FakeMesh, placements: tuple[Any, ...], local: Tensor, role: df.Placement = ROLE
) -> HeldForm:
    tensor: Any = FakeDTensor(FULL, mesh, placements, local)
    return held_tensors(role, role.on[rank], {"w": tensor}).forms["w"]


def test_a_plain_tensor_is_on_all_workers_of_a_stage() -> None:
    bias = nn.Parameter(torch.ones(3))
    held = held_tensors(ROLE, 6, {"bias": bias})
    one = held.forms["bias"]
    assert (one.shape, one.boxes, one.replicas, one.index) == ((3,), [Box((0,), (3,))], (4, 5, 6, 7), 2)
    assert held.addresses.tolist() == [bias.data_ptr()]
    stages = df.place(Model, "pp2 dp2", on=[3, 2, 1, 0])
    assert held_tensors(stages, 1, {"bias": bias}).forms["bias"].replicas == (0, 1)
    experts = df.place(Model, "dp2 ep2", on=[0, 1, 2, 3])
    assert held_tensors(experts, 1, {"bias": bias}).forms["bias"].replicas == (1, 3)


@pytest.mark.parametrize("rank", range(4))
def test_a_mesh_with_the_names_of_the_layout(rank: int) -> None:
    mesh = FakeMesh([[0, 1], [2, 3]], rank, ("dp", "tp"))
    rows = 4 * (rank % 2)
    one = held(rank, mesh, (Replicate(), Shard(0)), FULL[rows : rows + 4])
    assert one.boxes == [Box((rows, 0), (4, 4))]
    assert one.replicas == ((4, 6), (5, 7))[rank % 2]
    assert one.replicas[one.index] == 4 + rank
    # A mesh of the inner dimension alone, as with DDP around it: the outer one is known by the layout.
    inner = FakeMesh([[0, 1], [2, 3]][rank // 2], rank, ("tp",))
    same = held(rank, inner, (Shard(0),), FULL[rows : rows + 4])
    assert (same.boxes, same.replicas, same.index) == (one.boxes, one.replicas, one.index)
    # The last dimension, counted from behind.
    columns = 2 * (rank // 2)
    other = held(rank, mesh, (Shard(-1), Replicate()), FULL[:, columns : columns + 2])
    assert (other.boxes, other.replicas) == ([Box((0, columns), (8, 2))], ((4, 5), (6, 7))[rank // 2])


@pytest.mark.parametrize("rank", range(4))
def test_a_mesh_with_other_names_that_has_all_workers(rank: int) -> None:
    mesh = FakeMesh([[10, 30], [20, 40]], (10, 20, 30, 40)[rank])
    rows = 4 * (rank % 2)
    one = held(rank, mesh, (Shard(0), Replicate()), FULL[rows : rows + 4])
    assert (one.boxes, one.replicas) == ([Box((rows, 0), (4, 4))], ((4, 6), (5, 7))[rank % 2])
    # A name of the layout, but another order: what others hold follows from ranks.
    turned = FakeMesh([[10, 30], [20, 40]], (10, 20, 30, 40)[rank], ("dp", "tp"))
    same = held(rank, turned, (Shard(0), Replicate()), FULL[4 * (rank % 2) :][:4])
    assert same.replicas == one.replicas
    # Some of the workers: it is not known that others hold the same.
    part = FakeMesh([[0, 1], [2, 3]][rank // 2], rank, ("fsdp",))
    alone = held(rank, part, (Shard(0),), FULL[rows : rows + 4])
    assert (alone.boxes, alone.replicas, alone.index) == (one.boxes, (4 + rank,), 0)


@pytest.mark.parametrize("rank", range(4))
def test_what_fsdp_shards_again_is_cut_from_inside(rank: int) -> None:
    mesh = FakeMesh([[0, 1], [2, 3]], rank, ("dp", "tp"))
    dp, tp = divmod(rank, 2)
    local = FULL.chunk(2)[tp].chunk(2)[dp]
    one = held(rank, mesh, (Strided(0, 2), Shard(0)), local)
    assert one.boxes == [Box((4 * tp + 2 * dp, 0), (2, 4))]
    assert one.replicas == (4 + rank,)


@pytest.mark.parametrize("rank", range(12))
def test_uneven_parts_of_fsdp_are_known_by_their_sizes(rank: int) -> None:
    """27 rows over tp4 and dp3: by its placements, some workers would have parts of other sizes, and one another part."""
    mesh = FakeMesh([[4 * dp + tp for tp in range(4)] for dp in range(3)], rank, ("dp", "tp"))
    role = df.place(Model, "dp3 tp4", on=range(12))
    full = torch.arange(27)
    dp, tp = divmod(rank, 4)
    of_fsdp = full.chunk(4)[tp].chunk(3)[dp]
    of_placements = torch.cat([group.chunk(3)[dp] for group in full.chunk(4)]).chunk(4)
    by_placements = of_placements[tp] if tp < len(of_placements) else full[:0]

    def parts(local: Tensor) -> list[int]:
        tensor: Any = FakeDTensor(full, mesh, (Strided(0, 4), Shard(0)), local)
        found = []
        for box in held_tensors(role, rank, {"w": tensor}).forms["w"].boxes:
            found += range(box.start[0], box.start[0] + box.size[0])
        return found

    if len(of_fsdp) != len(by_placements) or torch.equal(of_fsdp, by_placements):
        assert parts(of_fsdp) == of_fsdp.tolist()
        assert parts(by_placements) == by_placements.tolist()
        assert rank != 10
    else:
        assert (rank, of_fsdp.tolist(), by_placements.tolist()) == (10, [20], [26])
        with pytest.raises(
            FlowError, match=r"has local shape \[1\], which may be \[20:21\] or \[26:27\]: FSDP2 and"
        ):
            parts(of_fsdp)


def test_what_is_no_part_of_a_tensor_is_refused() -> None:
    mesh = FakeMesh([[0, 1], [2, 3]], 0, ("dp", "tp"))
    with pytest.raises(
        FlowError, match=r"tensor w of role 'actor' has placement .* in dimension 0 of its mesh"
    ):
        held(0, mesh, (Partial(), Replicate()), FULL)
    with pytest.raises(FlowError, match=r"has local shape \[8, 4\]; need \[4, 4\]"):
        held(0, mesh, (Replicate(), Shard(0)), FULL)


def test_a_worker_outside_of_the_mesh_holds_nothing() -> None:
    tensor: Any = FakeDTensor(FULL, FakeMesh([0, 1], 2, ("tp",)), (Shard(0),), FULL[:0])
    assert held_tensors(ROLE, 6, {"w": tensor}).tensors == []


@pytest.mark.parametrize("shape", [(), (1,), (5,), (1, 7), (200, 100), (1, 30000), (0, 3), (2, 20000)])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_replicas_show_each_item_once(shape: tuple[int, ...], n: int) -> None:
    role = df.place(Model, f"dp{n}", on=range(n))
    counts = torch.zeros(shape)
    shown = []
    for worker in role.on:
        one = held_tensors(role, worker, {"w": counts}).forms["w"]
        for share in one.share("w"):
            one.region(counts, share).add_(1)
            shown.append(share.n_items)
    assert (counts == 1).all()
    if prod(shape) * 4 >= 1 << 16 and n <= shape[0]:
        assert max(shown) <= -(-shape[0] // n) * prod(shape[1:])


def test_small_tensors_are_shown_by_different_replicas() -> None:
    role = df.place(Model, "dp2", on=[0, 1])
    shown = [
        held_tensors(role, worker, {name: torch.zeros(3)}).forms[name].share(name) != []
        for worker, name in product(role.on, (f"layer{i}.bias" for i in range(40)))
    ]
    assert [one != other for one, other in zip(shown[:40], shown[40:], strict=True)] == [True] * 40
    assert 10 < sum(shown[:40]) < 30


def test_modules_that_gather_parameters_free_them() -> None:
    called = []

    class Gathering(nn.Module):
        def reshard(self) -> None:
            called.append("reshard")

        def unshard(self) -> None: ...

    class Other(nn.Module):
        def reshard(self) -> None:
            called.append("other")

    reshard([nn.Sequential(Gathering(), nn.Linear(1, 1), nn.Sequential(Gathering())), Other()])
    assert called == ["reshard", "reshard"]
