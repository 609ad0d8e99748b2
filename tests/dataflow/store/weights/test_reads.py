"""Plans of moves of weights: what targets read is what they want, once, at home first, and from balanced holders."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from random_layouts import Array, Sharding, random_shape, random_sharding

from softs_fast.dataflow.store.weights.boxes import Box, whole
from softs_fast.dataflow.store.weights.reads import Read, first_lacking, plan_reads
from softs_fast.errors import FlowError

Boxes = dict[int, dict[str, list[Box]]]
Plan = dict[int, tuple[Read, ...]]


def random_move(chance: random.Random) -> tuple[dict[str, Array], dict[str, Sharding], dict[str, Sharding]]:
    """Tensors, and how sources and targets shard them; in each role all are on the same workers."""
    tensors, sources, targets = {}, {}, {}
    for number in range(chance.randint(1, 3)):
        shape = random_shape(chance)
        tensors[f"w{number}"] = np.random.default_rng(chance.randrange(99)).integers(0, 1 << 40, shape)
        for made in (sources, targets):
            sharding = random_sharding(chance, shape)
            first = next(iter(made.values()), sharding)
            # The same mesh, but other dimensions of the tensor.
            made[f"w{number}"] = replace(
                first, dims=tuple(chance.choice([None, *range(len(shape))]) for _ in first.mesh)
            )
    return tensors, sources, targets


def held_of(tensors: dict[str, Array], shardings: dict[str, Sharding]) -> Boxes:
    held: Boxes = {}
    for name, sharding in shardings.items():
        for worker, box in sharding.boxes(tensors[name].shape).items():
            held.setdefault(worker, {})[name] = box
    return held


def read_all(
    plan: Plan, tensors: dict[str, Array], boxes: Boxes
) -> tuple[dict[tuple[int, str], Array], dict[tuple[int, str], Array]]:
    """Apply a plan; returns values and how often each item was written, by target and name, in the whole tensor."""
    values: dict[tuple[int, str], Array] = {}
    counts: dict[tuple[int, str], Array] = {}
    for target, reads in plan.items():
        for name, tensor in tensors.items():
            values[target, name], counts[target, name] = np.zeros_like(tensor), np.zeros_like(tensor)
        for read in reads:
            assert read.held in boxes[read.source][read.name]
            assert read.box.n_items
            assert read.box.overlap(read.held) == read.box
            at = read.box.within(whole(tensors[read.name].shape))
            values[target, read.name][at] = tensors[read.name][at]
            counts[target, read.name][at] += 1
    return values, counts


def test_what_random_targets_read_is_a_redistribution_of_the_full_tensor() -> None:
    chance = random.Random(0)
    for _ in range(400):
        tensors, sources, targets = random_move(chance)
        wanted, held = held_of(tensors, targets), held_of(tensors, sources)
        item_bytes = {name: chance.choice([1, 2, 4, 8]) for name in tensors}
        plan = {
            target: plan_reads(target, boxes, held, item_bytes=item_bytes) for target, boxes in wanted.items()
        }
        values, counts = read_all(plan, tensors, held)
        for name, sharding in targets.items():
            for worker, expected in sharding.shards(tensors[name]).items():
                found = np.full_like(expected, -1)
                for piece in sharding.pieces(tensors[name].shape)[worker][1]:
                    at = piece.box.within(whole(tensors[name].shape))
                    here = Box(piece.at, piece.box.size).within(whole(expected.shape))
                    found[here] = values[worker, name][at]
                    assert (counts[worker, name][at] == 1).all()
                assert np.array_equal(found, expected)
                assert counts[worker, name].sum() == expected.size
        check_sources(plan, held, item_bytes)


def check_sources(plan: Plan, held: Boxes, item_bytes: dict[str, int]) -> None:
    """A target reads at home what it can; of sources that have the same, the loads differ by one region at most."""
    for target, reads in plan.items():
        loads: dict[tuple[int, ...], dict[int, int]] = {}
        largest = 0
        for read in reads:
            holders = tuple(worker for worker in held if read.held in held[worker].get(read.name, []))
            assert read.source == target if target in holders else read.source in holders
            own = loads.setdefault(holders, dict.fromkeys(holders, 0))
            n_bytes = read.box.n_items * item_bytes[read.name]
            own[read.source] += n_bytes
            largest = max(largest, n_bytes)
        if len(loads) == 1 and target not in held:
            (own,) = loads.values()
            assert max(own.values()) - min(own.values()) <= largest


def test_replicas_share_what_a_target_reads() -> None:
    tensor = Sharding((4,), (None,), (0, 1, 2, 3))
    shape, names = (6, 4), [f"w{i}" for i in range(12)]
    held: Boxes = {worker: dict.fromkeys(names, some) for worker, some in tensor.boxes(shape).items()}
    wanted = {key: [Box((0, 0), shape)] for key in names}
    reads = plan_reads(4, wanted, held, item_bytes=dict.fromkeys(names, 4))
    assert [one.source for one in reads] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3


def test_own_regions_come_first() -> None:
    full = Box((0,), (8,))
    held: dict[int, dict[str, Any]] = {0: {"w": [Box((0,), (4,))]}, 2: {"w": [full]}, 3: {"w": [full]}}
    reads = plan_reads(0, {"w": [full]}, held, item_bytes={"w": 1})
    assert reads == (Read("w", Box((0,), (4,)), 0, Box((0,), (4,))), Read("w", Box((4,), (4,)), 2, full))


def test_a_region_without_a_holder_is_named() -> None:
    wanted = {"v": [Box((0,), (0,))], "w": [Box((0, 2), (1, 2)), Box((1, 2), (3, 2))]}
    held = {5: {"w": [Box((0, 0), (3, 4))]}}
    assert first_lacking(wanted, held) == ("w", Box((3, 2), (1, 2)))
    assert first_lacking(wanted, held | {6: {"w": [Box((3, 0), (1, 4))]}}) is None
    with pytest.raises(FlowError, match=r"no worker has \[3:4, 2:4\] of tensor w, which worker 9 needs"):
        plan_reads(9, wanted, held, item_bytes={"v": 1, "w": 1})
