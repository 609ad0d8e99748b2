"""The plan of a move of weights: which region each target reads from which worker. Pure: no clock, socket or torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import FlowError
from ..moves.senders import round_shares, shares_of
from .boxes import Box

__all__ = ["Read", "Reads", "first_lacking", "plan_reads"]

#: Boxes of tensors that a worker holds, by name.
Held = Mapping[str, Sequence[Box]]


@dataclass(frozen=True, slots=True)
class Read:
    """A region that a target reads.

    Attributes:
        name: of the tensor.
        box: of the region.
        source: the worker that it is read from; the target's own number where its process has it.
        held: the box of the source in which the region lies.
    """

    name: str
    box: Box
    source: int
    held: Box


@dataclass(frozen=True)
class Reads:
    """What all targets read.

    Attributes:
        of: for each target its reads. They do not overlap, and together they are what it wants.
        n_bytes: of regions of other workers.
        own_bytes: of regions that targets have in their own processes.
        busiest: the worker of which others read most; -1 if none is read.
        busiest_bytes: what they read of it.
        bound: the least that the busiest worker has in any plan with these regions and nearest holders.
        largest: bytes of the largest region; `busiest_bytes` is at most the sum of both.
    """

    of: dict[int, tuple[Read, ...]]
    n_bytes: int
    own_bytes: int
    busiest: int
    busiest_bytes: int
    bound: float
    largest: int


@dataclass(frozen=True, slots=True)
class _Item:
    """A region for one target, and the nearest workers that have it."""

    target: int
    name: str
    box: Box
    held: Box
    holders: tuple[int, ...]


def first_lacking(wanted: Held, held: Mapping[int, Held]) -> tuple[str, Box] | None:
    """Return the first tensor of which no worker holds all that is wanted, with a part that is not there.

    Args:
        wanted: boxes of tensors, by name, which do not overlap.
        held: by worker, what it holds.
    """
    for name, parts in wanted.items():
        for box in parts:
            if any(box in mine.get(name, ()) for mine in held.values()):
                continue
            boxes = dict.fromkeys(one for mine in held.values() for one in mine.get(name, ()))
            left = _uncovered(box, boxes)
            if left:
                return name, left[0]
    return None


def plan_reads(
    wanted: Mapping[int, Held],
    held: Mapping[int, Held],
    *,
    item_bytes: Mapping[str, int],
    nodes: Mapping[int, int] | None = None,
) -> Reads:
    """Return which region each target reads from which worker.

    A region that the target's own process has is taken there; else from a worker of its node; else from any. Where
    several workers have it, the reads are balanced between them: nothing is read twice.

    Args:
        wanted: by target, boxes of tensors by name, which do not overlap; empty ones need nothing.
        held: by worker, the boxes of tensors that it holds. Equal regions of several workers have equal values.
        item_bytes: of an item of each tensor.
        nodes: the node of each worker; None: all are on one.

    Raises:
        FlowError: no worker holds a part of what a target wants; the text names tensor and part.

    Source: own, see docs/dataflow_design.md; a move between meshes as multicasts, Zhuang et al., "On Optimizing the
    Communication of Model Parallelism", MLSys 2023 (arXiv 2211.05322).
    """
    by_name = _holders(held)
    items = [
        item
        for target, boxes in wanted.items()
        for name, parts in boxes.items()
        for box in parts
        for item in _items(target, name, box, by_name.get(name, {}), nodes)
    ]
    sources, bound, largest = _sources(items, item_bytes)
    found: dict[int, list[Read]] = {target: [] for target in wanted}
    loads: dict[int, int] = {}
    own_bytes = 0
    for item, source in zip(items, sources, strict=True):
        n_bytes = item.box.n_items * item_bytes[item.name]
        if source == item.target:
            own_bytes += n_bytes
        else:
            loads[source] = loads.get(source, 0) + n_bytes
        found[item.target].append(Read(item.name, item.box, source, item.held))
    for target, reads in found.items():
        # Targets begin with different workers: those with the next numbers.
        reads.sort(key=lambda one: (one.source < target, one.source))
    busiest = max(loads, key=lambda worker: (loads[worker], -worker), default=-1)
    return Reads(
        {target: tuple(reads) for target, reads in found.items()},
        sum(loads.values()),
        own_bytes,
        busiest,
        loads.get(busiest, 0),
        bound,
        largest,
    )


def _holders(held: Mapping[int, Held]) -> dict[str, dict[Box, list[int]]]:
    """Return by tensor and box the workers that hold exactly that."""
    found: dict[str, dict[Box, list[int]]] = {}
    for worker in sorted(held):
        for name, boxes in held[worker].items():
            for box in boxes:
                workers = found.setdefault(name, {}).setdefault(box, [])
                if worker not in workers:
                    workers.append(worker)
    return found


def _items(
    target: int, name: str, box: Box, holders: Mapping[Box, Sequence[int]], nodes: Mapping[int, int] | None
) -> list[_Item]:
    """Cut what a target wants of a tensor into regions, the nearest holders first."""

    def nearest(workers: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        if target in workers:
            return 0, (target,)
        near = tuple(one for one in workers if nodes is None or nodes[one] == nodes[target])
        return (1, near) if near else (2, tuple(workers))

    ranked = [(*nearest(workers), one) for one, workers in holders.items()]
    if len(ranked) > 1:
        ranked.sort(
            key=lambda entry: (entry[0], -entry[2].overlap(box).n_items, entry[2].start, entry[2].size)
        )
    elif ranked and ranked[0][2] == box and box.n_items:
        return [_Item(target, name, box, box, ranked[0][1])]
    found, left = [], [box] if box.n_items else []
    for _, workers, one in ranked:
        if not left:
            break
        found += [
            _Item(target, name, region, one, workers)
            for piece in left
            if (region := piece.overlap(one)).n_items
        ]
        left = [rest for piece in left for rest in piece.minus(one)]
    if left:
        raise FlowError(f"no worker has {left[0]} of tensor {name}, which worker {target} needs")
    return found


def _sources(items: Sequence[_Item], item_bytes: Mapping[str, int]) -> tuple[list[int], float, int]:
    """Return the source of each region, the bound of the busiest one, and the largest region."""
    sets: dict[tuple[int, ...], list[int]] = {}
    for number, item in enumerate(items):
        if item.holders != (item.target,):
            sets.setdefault(item.holders, []).append(number)
    sizes = [
        np.array([items[i].box.n_items * item_bytes[items[i].name] for i in numbers], np.int64)
        for numbers in sets.values()
    ]
    shares = shares_of(list(sets), [int(one.sum()) for one in sizes])
    sources = [item.target for item in items]
    for numbers, chosen in zip(sets.values(), round_shares(shares, list(sets), sizes), strict=True):
        for number, source in zip(numbers, chosen.tolist(), strict=True):
            sources[number] = source
    return sources, float(shares.bound), max((int(one.max()) for one in sizes), default=0)


def _uncovered(box: Box, others: Mapping[Box, None]) -> list[Box]:
    left = [box] if box.n_items else []
    for one in others:
        left = [rest for piece in left for rest in piece.minus(one)]
        if not left:
            break
    return left
