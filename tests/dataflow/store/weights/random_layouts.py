"""Random tensors on random meshes, and what each worker has by `torch.chunk`."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np
import torch

from softs_fast.dataflow.store.weights.boxes import Box, Cut, Piece, pieces_of

Array = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Sharding:
    """A mesh of workers, and for each of its dimensions the dimension of the tensor that it shards, or None."""

    mesh: tuple[int, ...]
    dims: tuple[int | None, ...]
    workers: tuple[int, ...]
    #: For each dimension of the mesh, of how many groups of the tensor it takes chunks; none: of one.
    factors: tuple[int, ...] = ()

    @property
    def coordinates(self) -> dict[int, tuple[int, ...]]:
        """Where each worker is in the mesh."""
        return dict(zip(self.workers, product(*map(range, self.mesh)), strict=True))

    def pieces(self, shape: tuple[int, ...]) -> dict[int, tuple[tuple[int, ...], tuple[Piece, ...]]]:
        """The size of what each worker has, and what it consists of."""
        return {
            worker: pieces_of(
                shape,
                [
                    Cut(dim, n, index, factor)
                    for dim, n, index, factor in zip(
                        self.dims, self.mesh, coordinate, self.factors or (1,) * len(self.dims), strict=True
                    )
                    if dim is not None
                ],
            )
            for worker, coordinate in self.coordinates.items()
        }

    def boxes(self, shape: tuple[int, ...]) -> dict[int, list[Box]]:
        """What each worker has."""
        return {worker: [one.box for one in some] for worker, (_, some) in self.pieces(shape).items()}

    def part(self, tensor: torch.Tensor, worker: int) -> torch.Tensor:
        """What a worker has of a tensor, in memory of its own."""
        mine, coordinate = tensor, self.coordinates[worker]
        factors = self.factors or (1,) * len(self.dims)
        for dim, n, index, n_groups in zip(self.dims, self.mesh, coordinate, factors, strict=True):
            if dim is not None:
                groups = [chunk_of(mine, n_groups, dim, i) for i in range(n_groups)]
                mine = torch.cat([chunk_of(group, n, dim, index) for group in groups], dim)
        return mine.clone()

    def shards(self, tensor: Array) -> dict[int, Array]:
        """What each worker has, by `torch.chunk`."""
        return {worker: self.part(torch.from_numpy(tensor), worker).numpy() for worker in self.workers}


def chunk_of(tensor: torch.Tensor, n: int, dim: int, index: int) -> torch.Tensor:
    """A chunk, by `torch.chunk`; those that it leaves out are empty."""
    chunks = tensor.chunk(n, dim) if tensor.shape[dim] else ()
    return chunks[index] if index < len(chunks) else tensor.narrow(dim, 0, 0)


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
    factors = tuple(chance.choice([1, 1, 1, 2, 3]) for _ in mesh)
    return Sharding(mesh, dims, tuple(chance.sample(range(n_workers), prod(mesh))), factors)
