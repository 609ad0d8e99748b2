"""Random tensors on random meshes, and what each worker has by `torch.chunk`."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np
import torch

from softs_fast.dataflow.weights.boxes import Box, box_of

Array = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Sharding:
    """A mesh of workers, and for each of its dimensions the dimension of the tensor that it shards, or None."""

    mesh: tuple[int, ...]
    dims: tuple[int | None, ...]
    workers: tuple[int, ...]

    @property
    def coordinates(self) -> dict[int, tuple[int, ...]]:
        """Where each worker is in the mesh."""
        return dict(zip(self.workers, product(*map(range, self.mesh)), strict=True))

    def boxes(self, shape: tuple[int, ...]) -> dict[int, Box]:
        """What each worker has."""
        return {
            worker: box_of(
                shape,
                [
                    (dim, n, index)
                    for dim, n, index in zip(self.dims, self.mesh, coordinate, strict=True)
                    if dim is not None
                ],
            )
            for worker, coordinate in self.coordinates.items()
        }

    def shards(self, tensor: Array) -> dict[int, Array]:
        """What each worker has, by `torch.chunk`."""
        found = {}
        for worker, coordinate in self.coordinates.items():
            mine = torch.from_numpy(tensor)
            for dim, n, index in zip(self.dims, self.mesh, coordinate, strict=True):
                if dim is not None:
                    chunks = mine.chunk(n, dim) if mine.shape[dim] else ()
                    mine = chunks[index] if index < len(chunks) else mine.narrow(dim, 0, 0)
            found[worker] = mine.numpy()
        return found


def random_shape(chance: random.Random) -> tuple[int, ...]:
    return tuple(
        chance.choice([0, 1, 2, 3, 4, 5, 7, 8, 9, 13]) for _ in range(chance.choice([0, 1, 1, 2, 2, 3]))
    )


def random_sharding(chance: random.Random, shape: tuple[int, ...], n_workers: int = 16) -> Sharding:
    """A mesh of one to three dimensions."""
    mesh = tuple(chance.choice([1, 2, 2, 3, 4]) for _ in range(chance.choice([1, 1, 2, 3])))
    while prod(mesh) > n_workers:
        mesh = mesh[:-1]
    dims = tuple(chance.choice([None, *range(len(shape))]) for _ in mesh)
    return Sharding(mesh, dims, tuple(chance.sample(range(n_workers), prod(mesh))))
