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
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

__all__ = ["HeldTensor", "held_tensors", "reshard"]

#: Below that a tensor is shown by one of its holders, bytes.
_LEAST_CUT = 1 << 16
#: Along these dimensions of a layout workers may have tensors of other names.
_DIFFERENT = ("pp", "ep")


#: Of a mesh its sizes and ranks; and dimensions of the mesh with those of the tensor that they cut.
Layout = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class HeldTensor:
    """What this worker holds of a tensor.

    Attributes:
        local: its items; they are the role's own.
        shape: of the whole tensor.
        box: the part of it that is here.
        replicas: workers that hold the same part, this one included, as all of them know.
        index: which of them this worker is.
        layout: how all workers of the mesh hold it; equal layouts of one shape have equal parts everywhere. Empty: it is
            no DTensor.
    """

    local: Tensor
    shape: tuple[int, ...]
    box: Box
    replicas: tuple[int, ...]
    index: int
    layout: Layout

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
        return self.local if box == self.box else self.local[box.within(self.box)]


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

    A tensor that is no DTensor is taken to be the same on all workers of the role that have the same rank of pp and ep;
    others may have other tensors. A DTensor of a mesh of which this worker is no member is left out.

    Args:
        role: with its layout.
        worker: this one.
        tensors: of the role's object.

    Raises:
        FlowError: a DTensor has a placement that is no part of the tensor, or its local shape is not that of its part.
    """
    at = role.on.index(worker)
    alike = _same(role, at, _DIFFERENT)
    known: dict[tuple[int, frozenset[int]], tuple[tuple[int, ...], int]] = {}
    found = {}
    for name, tensor in tensors.items():
        if hasattr(tensor, "device_mesh"):
            held = _of_dtensor(role, at, name, tensor, known)  # type: ignore[arg-type]
            if held is not None:
                found[name] = held
        else:
            box = whole(tensor.shape)
            found[name] = HeldTensor(tensor.detach(), tuple(tensor.shape), box, *alike, ())
    return found


def _number_of(name: str) -> int:
    """Return a number that is the same in all processes, and as likely even as odd, even for names that are alike."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def _of_dtensor(
    role: Placement,
    at: int,
    name: str,
    tensor: DTensor,
    known: dict[tuple[int, frozenset[int]], tuple[tuple[int, ...], int]],
) -> HeldTensor | None:
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
    # Many tensors have one mesh, and few ways to be sharded.
    key = (id(mesh), frozenset(i for i, _ in sharded))
    if key not in known:
        known[key] = _replicas(role, at, mesh, key[1])
    ranks, sizes = tuple(mesh.mesh.flatten().tolist()), tuple(mesh.shape)
    return HeldTensor(local, shape, box, *known[key], (sizes, ranks, *sharded))


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


def _replicas(
    role: Placement, at: int, mesh: DeviceMesh, sharded: frozenset[int]
) -> tuple[tuple[int, ...], int]:
    """Return the workers that hold the same part, as far as mesh and layout say."""
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    ranks, workers = mesh.mesh.flatten().tolist(), sorted(role.on)
    if len(ranks) == len(workers):
        # Ranks are numbered as workers are.
        worker_of = dict(zip(sorted(ranks), workers, strict=True))
        if worker_of[mesh.get_rank()] == role.on[at]:
            places = zip(ranks, product(*map(range, mesh.shape)), strict=True)
            same = sorted(
                worker_of[rank] for rank, one in places if all(one[i] == coordinate[i] for i in sharded)
            )
            return tuple(same), same.index(role.on[at])
    names, layout, place = mesh.mesh_dim_names or (), dict(role.layout.dims), role.layout.coordinates(at)
    if names and all(
        layout.get(one) == mesh.size(i) and place[one] == coordinate[i] for i, one in enumerate(names)
    ):
        fixed = [one for i, one in enumerate(names) if i in sharded]
        return _same(role, at, [*fixed, *(one for one in _DIFFERENT if one not in names)])
    return (role.on[at],), 0


def _same(role: Placement, at: int, fixed: Sequence[str]) -> tuple[tuple[int, ...], int]:
    """Return the workers that have the same coordinates as one along some dimensions of the layout."""
    own = role.layout.coordinates(at)
    which = [dim for dim in fixed if dim in own]
    found = []
    for place in range(len(role.on)):
        one = role.layout.coordinates(place)
        if all(one[dim] == own[dim] for dim in which):
            found.append(place)
    workers = sorted(role.on[place] for place in found)
    return tuple(workers), workers.index(role.on[at])
