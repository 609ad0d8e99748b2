"""Which part of each tensor of a role this process holds, and which other workers hold the same."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ....errors import ConfigError, FlowError
from ....tensors import is_plain, local_tensor
from ...declare.roles import Placement
from ..encoding import SENT_DTYPES
from .boxes import Cut, Piece, pieces_of
from .forms import Held, HeldForm, HeldForms, Layout, Mark

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

__all__ = ["check_tensors", "held_tensors", "reshard", "warn_of_rest"]

logger = logging.getLogger(__name__)

#: Along these dimensions of a layout workers may have tensors of other names.
_DIFFERENT = ("pp", "ep")

#: Workers that hold the same part, and which of them this one is.
_Alike = tuple[tuple[int, ...], int]


def reshard(modules: Iterable[nn.Module]) -> None:
    """Have modules of FSDP2 free parameters that they have gathered: what is written to those would be lost."""
    for module in modules:
        for one in module.modules():
            kind: Any = type(one)
            if _is_fully_sharded(kind):
                free: Any = one
                free.reshard()


@cache
def _is_fully_sharded(kind: type) -> bool:
    # Only `torch.distributed.fsdp.FSDPModule` has both; it is slow to import.
    return callable(getattr(kind, "reshard", None)) and callable(getattr(kind, "unshard", None))


def held_tensors(
    role: Placement,
    worker: int,
    tensors: Mapping[str, Tensor],
    *,
    known: Iterable[HeldForms] = (),
) -> Held:
    """Return what this worker holds of the tensors of a role.

    A tensor that is no DTensor is taken to be the same on all workers of the role that have the same rank of pp and ep;
    others may have other tensors. A DTensor of a mesh of which this worker is no member is left out.

    Args:
        role: Role with its layout.
        worker: Number of this worker.
        tensors: Tensors of the role's object by name.
        known: Forms that tensors of the object had before; they are used if the tensors have them still.

    Raises:
        FlowError: a DTensor has a placement that is no part of the tensor, or its local shape is not that of its part; or
            see `check_tensors`.
    """
    for forms in known:
        again = forms.found_in(tensors)
        if again is not None:
            return again
    at = role.on.index(worker)
    alike = _same(role, at, _DIFFERENT)
    meshes: dict[tuple[int, frozenset[int]], _Alike] = {}
    found: dict[str, HeldForm] = {}
    marks: dict[str, Mark] = {}
    here: list[Tensor] = []
    owners: list[Tensor] = []
    for name, tensor in tensors.items():
        shape = tuple(tensor.shape)
        if not hasattr(tensor, "device_mesh"):
            local = _checked(role, name, tensor)
            part: _PartOf | None = (shape, pieces_of(shape, ())[1], alike, ())
            marks[name] = Mark(type(tensor), tensor.dtype, shape, is_plain(local))
        else:
            with torch.no_grad():
                local = _checked(role, name, tensor.to_local())  # type: ignore[attr-defined]
            part = _part_of_dtensor(role, at, name, tensor, tuple(local.shape), meshes)  # type: ignore[arg-type]
            marks[name] = Mark(
                type(tensor),
                tensor.dtype,
                shape,
                is_plain(local),
                tensor.device_mesh,
                tensor.placements,  # type: ignore[attr-defined]
                None if part is None else part[0],
            )
        if part is not None:
            size, pieces, (replicas, index), layout = part
            plain = marks[name].is_plain
            found[name] = HeldForm(tensor.dtype, size, plain, shape, pieces, replicas, index, layout)
            here.append(local)
            owners.append(tensor)
    return Held(HeldForms(found, marks), here, owners)


def check_tensors(role: Placement, tensors: Mapping[str, Tensor], *, written: bool) -> None:
    """Check that the tensors of a role can be shown to other processes, and written if they are a target's.

    Args:
        role: Role of the tensors.
        tensors: Tensors of the role's object by name.
        written: Whether weights of another role will be written into them.

    Raises:
        FlowError: A tensor has no memory in this process, is not strided, or has a dtype that messages do not have.
    """
    for name, tensor in tensors.items():
        _checked(role, name, tensor, written=written)


def warn_of_rest(source: Placement, target: Placement, theirs: Iterable[str], mine: Iterable[str]) -> None:
    """Warn of tensors that a role does not get because it has none of their names, such as those of an adapter.

    Args:
        source: Role that the weights are of.
        target: Role that gets them.
        theirs: Names of the source's tensors.
        mine: Names of the target's tensors on this worker.
    """
    rest = sorted(set(theirs) - set(mine))
    # The workers of a pipeline have some each.
    if rest and not any(dim in _DIFFERENT and size > 1 for dim, size in target.layout.dims):
        more = f" and {len(rest) - 4} more" if len(rest) > 4 else ""
        logger.warning(
            "weights of role %r: role %r has no %s%s: they are not copied to it",
            *(source.name, target.name, ", ".join(rest[:4]), more),
        )


def _checked(role: Placement, name: str, tensor: Tensor, *, written: bool = False) -> Tensor:
    try:
        return local_tensor(
            name, tensor, kind=f"role {role.name!r}: tensor", dtypes=SENT_DTYPES, written=written
        )
    except ConfigError as error:
        raise FlowError(str(error)) from None


#: Size and pieces of what is here, the workers that have the same, and the layout.
_PartOf = tuple[tuple[int, ...], tuple[Piece, ...], _Alike, Layout]


def _part_of_dtensor(
    role: Placement,
    at: int,
    name: str,
    tensor: DTensor,
    local: tuple[int, ...],
    known: dict[tuple[int, frozenset[int]], _Alike],
) -> _PartOf | None:
    mesh, coordinate = tensor.device_mesh, tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return None
    shape = tuple(tensor.shape)
    sharded = _sharded(role, name, tensor)
    readings = [
        pieces_of(shape, [Cut(dim, mesh.size(i), coordinate[i], n) for i, dim, n in one])
        for one in _readings(mesh, sharded)
    ]
    # What is here has one of these sizes; if they are different parts of one size, it could be either.
    fitting = dict.fromkeys(one for one in readings if one[0] == local)
    what = f"tensor {name} of role {role.name!r}, {list(shape)} with placements {tensor.placements}"
    if not fitting:
        need = " or ".join(str(list(size)) for size in dict.fromkeys(size for size, _ in readings))
        raise FlowError(f"{what}, has local shape {list(local)}; need {need}")
    if len(fitting) > 1:
        parts = " or ".join(", ".join(str(one.box) for one in pieces) for _, pieces in fitting)
        raise FlowError(
            f"{what}, has local shape {list(local)}, which may be {parts}: FSDP2 and its placements differ there; pad "
            "it, or shard another dimension"
        )
    ((size, pieces),) = fitting
    # Many tensors have one mesh, and few ways to be sharded.
    key = (id(mesh), frozenset(i for i, _, _ in sharded))
    if key not in known:
        known[key] = _replicas(role, at, mesh, key[1])
    ranks, sizes = tuple(mesh.mesh.flatten().tolist()), tuple(mesh.shape)
    return size, pieces, known[key], (sizes, ranks, *sharded, (readings.index((size, pieces)),))


#: Dimension of the mesh, dimension of the tensor that it cuts, and number of groups; see `Cut`.
_Sharded = list[tuple[int, int, int]]


def _sharded(role: Placement, name: str, tensor: DTensor) -> _Sharded:
    from torch.distributed.tensor import Replicate, Shard

    sharded: _Sharded = []
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
        sharded.append((i, dim % tensor.ndim, int(factor or 1)))
    return sharded


def _readings(mesh: DeviceMesh, sharded: _Sharded) -> list[_Sharded]:
    """Return in which ways placements can be read: orders of cuts.

    FSDP2 shards what other dimensions of the mesh, further inside, have sharded before. It says so by a placement with
    `split_factor`, the number of those shards. By DTensor's own rule this stands for cuts from left to right, of which
    that one takes a chunk of each of so many groups. With sizes that are no multiples both may differ, and then what
    FSDP2 has is not what its placements say (pytorch#168134).
    """
    plain = [one for one in sharded if one[2] == 1]
    late = [one for one in reversed(sharded) if one[2] > 1]
    if not late:
        return [sharded]
    inside = list(plain)
    for i, dim, factor in late:
        if factor != prod(mesh.size(j) for j, other, _ in inside if j > i and other == dim):
            return [sharded]
        inside.append((i, dim, 1))
    return [inside, sharded]


def _replicas(role: Placement, at: int, mesh: DeviceMesh, sharded: frozenset[int]) -> _Alike:
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


def _same(role: Placement, at: int, fixed: Sequence[str]) -> _Alike:
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
