"""Data-parallel ranks of layouts, and their heads: beside torch's own numbering of a mesh."""

from __future__ import annotations

import pytest
import torch

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.ranks import heads_of, rank_of, ranks_of


class Model(df.Role): ...


LAYOUTS = ("dp1", "dp4", "tp4", "pp2 dp2 tp2", "dp2 pp2 cp2 tp2", "tp2 dp3", "ep2 cp2 dp2 pp3")


def place(layout: str) -> df.Placement:
    n = df.place(Model, layout, on=range(1)) if layout == "dp1" else None
    if n is not None:
        return n
    sizes = [int(word[2:]) for word in layout.split()]
    n_workers = int(torch.tensor(sizes).prod())
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
