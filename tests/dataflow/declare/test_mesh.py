"""Ranks of layouts beside torch's numbering of a mesh, and what a mesh offers without ranks beside."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.ranks import heads_of, peers_along, rank_of, ranks_of
from softs_fast.errors import ConfigError


class Model(df.Role): ...


def mesh_of(layout: str, **sizes: int) -> df.Mesh:
    return df.Mesh("actor", df.Layout.parse(layout), sizes)


def test_one_rank_gets_what_it_gave() -> None:
    mesh, tensor = mesh_of("dp1", dp=1), torch.ones(2)
    assert mesh.all_reduce(tensor) is tensor
    several = [tensor]
    assert mesh.all_reduce(several, "mean") is several
    assert mesh.all_reduce(tensor, dim="tp") is tensor
    net = nn.Linear(2, 1)
    mesh.broadcast(net)
    net(tensor).sum().backward()
    gradient = net.weight.grad
    mesh.average_gradients(net)
    assert net.weight.grad is gradient
    mesh.average_gradients(net, 0.5)
    assert net.weight.grad.tolist() == [[0.5, 0.5]]  # type: ignore[union-attr]
    mesh.average_gradients(net, 0.0)
    assert net.weight.grad.tolist() == [[0, 0]]  # type: ignore[union-attr]


def test_what_there_is_not_is_named() -> None:
    mesh = mesh_of("dp2", dp=2)
    with pytest.raises(ConfigError, match="mesh of role 'actor': the 2 ranks of dp have no process group"):
        mesh.all_reduce(torch.ones(1))
    with pytest.raises(ConfigError, match="dim is 'rows'; need one of pp, dp, cp, tp, ep"):
        mesh.all_reduce(torch.ones(1), dim="rows")
    with pytest.raises(ConfigError, match="op is 'max'; need one of sum, mean"):
        mesh.all_reduce(torch.ones(1), "max")


def test_peers_along_each_dimension_are_in_the_order_of_the_mesh() -> None:
    role = df.place(Model, "dp2 tp3", on=[5, 4, 3, 2, 1, 0])
    assert peers_along(role, 4) == {"dp": (4, 1), "tp": (5, 4, 3)}
    assert peers_along(role, 0) == {"dp": (3, 0), "tp": (2, 1, 0)}
    assert peers_along(df.place(Model), 0) == {}


LAYOUTS = ("dp1", "dp4", "tp4", "pp2 dp2 tp2", "dp2 pp2 cp2 tp2", "tp2 dp3", "ep2 cp2 dp2 pp3")


def place(layout: str) -> df.Placement:
    n_workers = df.Layout.parse(layout).n_workers
    # Numbers of workers are not their places.
    return df.place(Model, layout, on=[7 + 3 * i for i in reversed(range(n_workers))])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_coordinates_are_those_of_a_device_mesh(layout: str) -> None:
    role = place(layout)
    names, sizes = zip(*role.layout.dims, strict=True)
    mesh = torch.arange(len(role.on)).reshape(sizes)
    for number in range(len(role.on)):
        at = dict(zip(names, (mesh == number).nonzero()[0].tolist(), strict=True))
        assert role.layout.coordinates(number) == at
        assert rank_of(role, role.on[number]) == at.get("dp", 0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_rank_has_its_peers_and_one_head(layout: str) -> None:
    role = place(layout)
    ranks, heads = ranks_of(role), heads_of(role)
    assert len(ranks) == len(heads) == role.layout.size("dp")
    assert sorted(worker for rank in ranks for worker in rank) == sorted(role.on)
    for number, (rank, head) in enumerate(zip(ranks, heads, strict=True)):
        assert head in rank
        assert {rank_of(role, worker) for worker in rank} == {number}
        at = role.layout.coordinates(role.on.index(head))
        assert at.get("pp", 0) == role.layout.size("pp") - 1
        assert {at.get(dim, 0) for dim in ("cp", "tp", "ep")} == {0}
