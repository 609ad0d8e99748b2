"""Processes that have the shards of one model, as FSDP2 makes them: they decide together, and change in one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from softs_fast.averaging.board import Fetch, Refused

T = TypeVar("T")


#: What came of a fetch: None while it is under way, why there is none, or rank and step of each snapshot.
Outcome = Refused | tuple[tuple[int, int], ...] | None


def outcome_of(found: Fetch | Refused | None) -> Outcome:
    """Return what came of a fetch on this shard."""
    if found is None or isinstance(found, Refused):
        return found
    return tuple((one.rank, one.step) for one in found.donations)


def refusal_of(outcomes: Sequence[Outcome]) -> Refused | None:
    """Return why a fetch is of no use, by what came of it on each shard; None if it is, or still may be."""
    for outcome in outcomes:
        if isinstance(outcome, Refused):
            return outcome
    first, *others = outcomes
    for other in others:
        if isinstance(first, tuple) and isinstance(other, tuple) and other != first:
            ranks = [rank for (rank, step), (_, another) in zip(first, other, strict=True) if step != another]
            return Refused(ranks[0], "its shards are of different steps")
    return None


class Shards:
    """The processes of the mesh of a distributed model; this process alone if the model is not distributed.

    Args:
        model: Model of this process.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        meshes = (getattr(weight, "device_mesh", None) for weight in model.parameters())
        mesh: Any = next((mesh for mesh in meshes if mesh is not None), None)
        self._groups = [] if mesh is None else [mesh.get_group(dimension) for dimension in range(mesh.ndim)]
        #: Place of this process in the mesh, such as "0" or "1.0"; "" without a mesh.
        self.place = "" if mesh is None else ".".join(map(str, mesh.get_coordinate()))
        #: Number of the first process of the mesh in torch.distributed; None without a mesh.
        self.first = None if mesh is None else int(mesh.mesh.min())

    @property
    def is_alone(self) -> bool:
        """Whether this process has a whole model."""
        return not self._groups

    @property
    def is_first(self) -> bool:
        """Whether this process decides for the others."""
        return not self.place.strip("0.")

    def gather(self, said: T) -> list[T]:
        """Return what each process says, that of the first one first; a call of all of them."""
        every = [said]
        for group in reversed(self._groups):
            parts: list[Any] = [None] * dist.get_world_size(group)
            dist.all_gather_object(parts, every, group=group)
            every = [one for part in parts for one in part]
        return every
