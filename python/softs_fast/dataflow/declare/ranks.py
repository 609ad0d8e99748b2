"""Which workers of a role work on the same rows, and which of them report: a data-parallel rank and its head."""

from __future__ import annotations

from .roles import Placement

__all__ = ["heads_of", "peers_along", "rank_of", "ranks_of", "role_at"]


def role_at(role: Placement, worker: int) -> Placement:
    """Return the role of which a worker has the object: of a pool the replica there, and any other role itself."""
    return next((one for one in role.replicas if one.on == (worker,)), role)


def ranks_of(role: Placement) -> tuple[tuple[int, ...], ...]:
    """Return the workers of each dp rank; those of one rank (by pp, cp, tp and ep) get the same rows."""
    ranks: list[list[int]] = [[] for _ in range(role.layout.size("dp"))]
    for number, worker in enumerate(role.on):
        ranks[role.layout.coordinates(number).get("dp", 0)].append(worker)
    return tuple(map(tuple, ranks))


def heads_of(role: Placement) -> tuple[int, ...]:
    """Return of each dp rank the worker that reports: of the last pp rank, and rank 0 of cp, tp and ep.

    Of a pool each worker does.
    """
    if role.replicas:
        return role.on
    heads = {}
    for number, worker in enumerate(role.on):
        at = role.layout.coordinates(number)
        is_head = all(at.get(dim, 0) == 0 for dim in ("cp", "tp", "ep"))
        if is_head and at.get("pp", 0) == role.layout.size("pp") - 1:
            heads[at.get("dp", 0)] = worker
    return tuple(heads[rank] for rank in range(role.layout.size("dp")))


def rank_of(role: Placement, worker: int) -> int:
    """Return the dp rank of a worker of a role."""
    return role.layout.coordinates(role.on.index(worker)).get("dp", 0)


def peers_along(role: Placement, worker: int) -> dict[str, tuple[int, ...]]:
    """Return the workers of the ranks along each dimension of several ranks, by rank, that are elsewhere as a worker is.

    Args:
        role: Role of the worker.
        worker: Number of the worker; it is one of them.
    """
    own = role.layout.coordinates(role.on.index(worker))
    found = {}
    for dim, size in role.layout.dims:
        if size > 1:
            there = {one: role.layout.coordinates(number) for number, one in enumerate(role.on)}
            found[dim] = tuple(one for one, at in there.items() if at | {dim: own[dim]} == own)
    return found
