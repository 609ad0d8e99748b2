"""What a mesh offers without ranks beside: what was given, and clear errors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.ranks import peers_along
from softs_fast.errors import ConfigError


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
    class Model(df.Role): ...

    role = df.place(Model, "dp2 tp3", on=[5, 4, 3, 2, 1, 0])
    assert peers_along(role, 4) == {"dp": (4, 1), "tp": (5, 4, 3)}
    assert peers_along(role, 0) == {"dp": (3, 0), "tp": (2, 1, 0)}
    assert peers_along(df.place(Model), 0) == {}
