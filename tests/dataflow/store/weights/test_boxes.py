"""Boxes: those of `torch.chunk`, and what they have in common."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from random_layouts import random_shape, random_sharding

from softs_fast.dataflow.store.weights.boxes import Box, Cut, chunk, pieces_of, whole


@pytest.mark.parametrize("n_chunks", range(1, 9))
@pytest.mark.parametrize("size", range(20))
def test_chunks_are_those_of_torch(size: int, n_chunks: int) -> None:
    expected = [one.tolist() for one in torch.arange(size).chunk(n_chunks)] if size else []
    expected += [[]] * (n_chunks - len(expected))
    found = [chunk(size, n_chunks, i) for i in range(n_chunks)]
    assert [list(range(start, start + n)) for start, n in found] == expected
    assert all(0 <= start <= size for start, _ in found)


def test_boxes_are_what_workers_of_random_meshes_have() -> None:
    chance, n_several = random.Random(0), 0
    for _ in range(500):
        shape = random_shape(chance)
        tensor = np.arange(np.prod(shape, dtype=int)).reshape(shape)
        sharding = random_sharding(chance, shape)
        for worker, shard in sharding.shards(tensor).items():
            size, pieces = sharding.pieces(shape)[worker]
            assert size == shard.shape
            found = np.full(size, -1)
            for piece in pieces:
                here = Box(piece.at, piece.box.size).within(whole(size))
                assert (found[here] == -1).all()
                found[here] = tensor[piece.box.within(whole(shape))]
            assert np.array_equal(found, shard)
            n_several += len(pieces) > 1
    assert n_several > 100


def random_box(chance: random.Random, shape: tuple[int, ...]) -> Box:
    starts = tuple(chance.randint(0, size) for size in shape)
    return Box(
        starts, tuple(chance.randint(0, size - start) for size, start in zip(shape, starts, strict=True))
    )


def test_overlaps_and_differences_of_random_boxes() -> None:
    chance = random.Random(1)
    for _ in range(2000):
        shape = random_shape(chance)
        one, other = random_box(chance, shape), random_box(chance, shape)
        marks = [np.zeros(shape, int) for _ in range(2)]
        for mark, box in zip(marks, (one, other), strict=True):
            mark[box.within(whole(shape))] += 1
        common = np.zeros(shape, int)
        overlap = one.overlap(other)
        if overlap.n_items:
            common[overlap.within(whole(shape))] += 1
        assert np.array_equal(common, marks[0] * marks[1])
        rest = np.zeros(shape, int)
        for box in one.minus(other):
            assert box.n_items
            rest[box.within(whole(shape))] += 1
        assert np.array_equal(rest, marks[0] * (1 - marks[1]))


@pytest.mark.parametrize("size", [(), (0, 3), (1, 1), (1, 5), (5, 3), (1, 0)])
def test_parts_of_a_box_are_the_box(size: tuple[int, ...]) -> None:
    box = Box((7,) * len(size), size)
    for n_parts in range(1, 7):
        marks = np.zeros(size, int)
        for index in range(n_parts):
            part = box.part(n_parts, index)
            if part is not None:
                assert part.n_items
                marks[part.within(box)] += 1
        assert (marks == 1).all()


def test_chunks_of_groups_that_follow_each_other_are_one_box() -> None:
    assert [str(one.box) for one in pieces_of((8,), [Cut(0, 2, 0, 2)])[1]] == ["[0:2]", "[4:6]"]
    size, (piece,) = pieces_of((8, 3), [Cut(0, 2, 0, 2), Cut(0, 2, 1)])
    assert (size, str(piece.box), piece.at) == ((2, 3), "[4:6, 0:3]", (0, 0))
    assert [str(one.box) for one in pieces_of((4,), [Cut(0, 1, 0, 2)])[1]] == ["[0:4]"]


def test_where_the_items_of_a_box_lie_in_memory() -> None:
    chance = random.Random(5)
    n_together = 0
    for _ in range(1000):
        shape = random_shape(chance)
        box = random_box(chance, shape)
        if not box.n_items:
            continue
        numbers = np.arange(np.prod(shape, dtype=int)).reshape(shape)[box.within(whole(shape))].ravel()
        expected = None
        if numbers[-1] - numbers[0] + 1 == len(numbers):
            expected = (numbers[0], len(numbers))
            n_together += len(numbers) > 1
        assert box.span_in(shape, box.start) == expected
    assert n_together > 30


def test_a_box_is_shown_as_slices() -> None:
    (piece,) = pieces_of((5, 4), [Cut(0, 2, 1), Cut(1, 2, 0)])[1]
    assert str(piece.box) == "[3:5, 0:2]"
