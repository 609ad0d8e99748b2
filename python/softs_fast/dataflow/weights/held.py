"""Which part of each tensor of a role this process holds, and which other workers hold the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...errors import FlowError
from ..declare.roles import Placement
from .boxes import Box, box_of, whole

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

__all__ = ["HeldTensor", "held_tensors", "reshard"]

#: Below that a tensor is shown by one of its holders, bytes.
_LEAST_CUT = 1 << 16


@dataclass(frozen=True)
class HeldTensor:
    """What this worker holds of a tensor.

    Attributes:
        local: its items; they are the role's own.
        shape: of the whole tensor.
        box: the part of it that is here.
        replicas: workers that hold the same part, this one included, as all of them know.
        index: which of them this worker is.
    """

    local: Tensor
    shape: tuple[int, ...]
    box: Box
    replicas: tuple[int, ...]
    index: int

    def share(self, name: str) -> Box | None:
        """Return the part that this worker shows to others; the parts of all replicas are the box. None: nothing.

        Args:
            name: of the tensor.
        """
        n = len(self.replicas)
        if n == 1:
            return self.box if self.box.n_items else None
        if self.box.n_items * self.local.element_size() >= _LEAST_CUT:
            return self.box.part(n, self.index)
        return self.box if self.box.n_items and _number_of(name) % n == self.index else None

    def region(self, box: Box) -> Tensor:
        """Return a view of a part of what is here."""
        return self.local[box.within(self.box)] if box.size else self.local


def reshard(modules: Iterable[nn.Module]) -> None:
    """Have modules of FSDP2 free parameters that they have gathered: what is written to those would be lost."""
    for module in modules:
        for one in module.modules():
            # Only `torch.distributed.fsdp.FSDPModule` has both; it is slow to import.
            free: Any = getattr(one, "reshard", None)
            if callable(free) and callable(getattr(one, "unshard", None)):
                free()


def held_tensors(role: Placement, worker: int, tensors: Mapping[str, Tensor]) -> dict[str, HeldTensor]:
    """Return what this worker holds of the tensors of a role, by name.

    A tensor that is no DTensor is taken to be the same on all workers of the role, but for those of other `pp` stages.
    A DTensor of a mesh of which this worker is no member is left out.

    Args:
        role: with its layout.
        worker: this one.
        tensors: of the role's object.

    Raises:
        FlowError: a DTensor has a placement that is no part of the tensor, or its local shape is not that of its part.
    """
    at = role.on.index(worker)
    found = {}
    for name, tensor in tensors.items():
        if hasattr(tensor, "device_mesh"):
            held = _of_dtensor(role, at, name, tensor)  # type: ignore[arg-type]
            if held is not None:
                found[name] = held
        else:
            box = whole(tensor.shape)
            same = _same(role, at, tuple(dim for dim, _ in role.layout.dims if dim == "pp"))
            found[name] = HeldTensor(tensor.detach(), tuple(tensor.shape), box, *same)
    return found


def _number_of(name: str) -> int:
    """Return a number that is the same in all processes, and as likely even as odd, even for names that are alike."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def _of_dtensor(role: Placement, at: int, name: str, tensor: DTensor) -> HeldTensor | None:
    mesh, coordinate = tensor.device_mesh, tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return None
    sharded = _sharded(role, name, tensor)
    shape = tuple(tensor.shape)
    box = box_of(shape, [(dim, mesh.size(i), coordinate[i]) for i, dim in sharded])
    with torch.no_grad():
        local = tensor.to_local().detach()
    if tuple(local.shape) != box.size:
        raise FlowError(
            f"tensor {name} of role {role.name!r}, {list(shape)} with placements {tensor.placements}, has local shape "
            f"{list(local.shape)}; need {list(box.size)}"
        )
    return HeldTensor(local, shape, box, *_replicas(role, at, tensor, {i for i, _ in sharded}))


def _sharded(role: Placement, name: str, tensor: DTensor) -> list[tuple[int, int]]:
    """Return dimensions of the mesh and the dimensions of the tensor that they shard, in the order of the cuts.

    FSDP2 shards what another dimension of the mesh, further inside, has sharded before. It says so by a placement with
    `split_factor`, the number of those shards.
    """
    from torch.distributed.tensor import Replicate, Shard

    mesh = tensor.device_mesh
    sharded: list[tuple[int, int]] = []
    late: list[tuple[int, int, int]] = []
    for i, placement in enumerate(tensor.placements):
        if type(placement) is Replicate:
            continue
        dim = getattr(placement, "dim", None)
        factor = getattr(placement, "split_factor", None)
        if dim is None or (type(placement) is not Shard and factor is None):
            raise FlowError(
                f"tensor {name} of role {role.name!r} has placement {placement} in dimension {i} of its mesh; weights "
                "move between Shard and Replicate: redistribute it first"
            )
        dim %= tensor.ndim
        if factor is None:
            sharded.append((i, dim))
        else:
            late.append((i, dim, int(factor)))
    # The innermost are cut first.
    for i, dim, factor in reversed(late):
        inner = prod(mesh.size(j) for j, other in sharded if j > i and other == dim)
        n_parts = prod(mesh.size(j) for j, other in sharded if other == dim) * mesh.size(i)
        if factor != inner or tensor.shape[dim] % n_parts:
            raise FlowError(
                f"tensor {name} of role {role.name!r}, {list(tensor.shape)} with placements {tensor.placements}, is cut "
                f"unevenly along dimension {dim}: {tensor.shape[dim]} items for {n_parts} parts with factor {factor}; "
                "such a tensor cannot move; pad it, or shard another dimension"
            )
        sharded.append((i, dim))
    return sharded


def _replicas(role: Placement, at: int, tensor: DTensor, sharded: set[int]) -> tuple[tuple[int, ...], int]:
    """Return the workers that hold the same part, as far as mesh and layout say."""
    mesh = tensor.device_mesh
    names, layout = mesh.mesh_dim_names, dict(role.layout.dims)
    if names is not None and all(layout.get(one) == mesh.size(i) for i, one in enumerate(names)):
        fixed = tuple(one for i, one in enumerate(names) if i in sharded)
        return _same(role, at, (*fixed, *(one for one in layout if one == "pp" and one not in names)))
    ranks = mesh.mesh.flatten().tolist()
    order = sorted(ranks)
    rank = mesh.get_rank()
    if len(ranks) == len(role.on) and order.index(rank) == at:
        # The mesh has other names, but all workers; ranks are in the order of the workers.
        coordinate = mesh.get_coordinate()
        assert coordinate is not None
        same = [
            order.index(other)
            for other, place in zip(ranks, product(*map(range, mesh.shape)), strict=True)
            if all(place[i] == coordinate[i] for i in sharded)
        ]
        return _of_places(role, at, same)
    return (role.on[at],), 0


def _same(role: Placement, at: int, fixed: Sequence[str]) -> tuple[tuple[int, ...], int]:
    """Return the workers that have the same coordinates as one along some dimensions of the layout."""
    coordinates = list(product(*(range(size) for _, size in role.layout.dims)))
    which = [i for i, (dim, _) in enumerate(role.layout.dims) if dim in fixed]
    own = [coordinates[at][i] for i in which]
    return _of_places(
        role, at, [place for place, one in enumerate(coordinates) if [one[i] for i in which] == own]
    )


def _of_places(role: Placement, at: int, places: Sequence[int]) -> tuple[tuple[int, ...], int]:
    workers = sorted(role.on[place] for place in places)
    return tuple(workers), workers.index(role.on[at])
