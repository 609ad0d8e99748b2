"""The plan of a move of weights: which region a target reads from which worker. Pure: no clock, socket or torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ....errors import FlowError
from ..senders import senders_of
from .boxes import Box

__all__ = ["Read", "first_lacking", "plan_reads"]

#: Boxes of tensors that a worker holds, by name.
Held = Mapping[str, Sequence[Box]]
#: Name of a tensor, a region of it for a target, the box in which that lies, and the workers that hold the box.
_Region = tuple[str, Box, Box, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Read:
    """A region that a target reads.

    Attributes:
        name: Name of the tensor.
        box: Box of the region.
        source: Worker that it is read from; the target's own number where its process has it.
        held: Box of the source in which the region lies.
    """

    name: str
    box: Box
    source: int
    held: Box


def first_lacking(wanted: Held, held: Mapping[int, Held]) -> tuple[str, Box] | None:
    """Return the first tensor of which no worker holds all that is wanted, with a part that is not there.

    Args:
        wanted: Boxes of tensors by name, which do not overlap.
        held: Boxes of tensors that each worker holds, by worker.
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
    target: int, wanted: Held, held: Mapping[int, Held], *, item_bytes: Mapping[str, int]
) -> tuple[Read, ...]:
    """Return which region a target reads from which worker: regions that do not overlap, and together are what it wants.

    A region that the target's own process has is taken there. Where several others have it, the one is read of which the
    target reads least so far.

    Args:
        target: Number of the worker that reads.
        wanted: Boxes of tensors by name, which do not overlap; empty ones need nothing.
        held: Boxes of tensors that each worker holds, by worker. Equal regions of several workers have equal values.
        item_bytes: Bytes of an item of each tensor.

    Raises:
        FlowError: no worker holds a part of what the target wants; the text names tensor and part.
    """
    by_name = _holders(held)
    regions = [
        one
        for name, parts in wanted.items()
        for box in parts
        for one in _regions(target, name, box, by_name.get(name, {}))
    ]
    sizes = [box.n_items * item_bytes[name] for name, box, _, _ in regions]
    sources = senders_of([holders for *_, holders in regions], sizes)
    reads = [
        Read(name, box, source, one) for (name, box, one, _), source in zip(regions, sources, strict=True)
    ]
    # Targets begin with different workers: those with the next numbers.
    return tuple(sorted(reads, key=lambda one: (one.source < target, one.source)))


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


def _regions(target: int, name: str, box: Box, holders: Mapping[Box, Sequence[int]]) -> list[_Region]:
    """Cut what a target wants of a tensor into regions, those of its own process first."""
    ranked = [((target,) if target in workers else tuple(workers), one) for one, workers in holders.items()]
    if len(ranked) > 1:
        ranked.sort(key=lambda it: (it[0] != (target,), -it[1].overlap(box).n_items, it[1].start, it[1].size))
    elif ranked and ranked[0][1] == box and box.n_items:
        return [(name, box, box, ranked[0][0])]
    found: list[_Region] = []
    left = [box] if box.n_items else []
    for workers, one in ranked:
        if not left:
            break
        found += [(name, region, one, workers) for piece in left if (region := piece.overlap(one)).n_items]
        left = [rest for piece in left for rest in piece.minus(one)]
    if left:
        raise FlowError(f"no worker has {left[0]} of tensor {name}, which worker {target} needs")
    return found


def _uncovered(box: Box, others: Mapping[Box, None]) -> list[Box]:
    left = [box] if box.n_items else []
    for one in others:
        left = [rest for piece in left for rest in piece.minus(one)]
        if not left:
            break
    return left
