"""Meshes of ranks of which only one exists: nothing is sent, so distributed tensors are made without processes."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextmanager
def mesh_of(*sizes: int, rank: int) -> Iterator[DeviceMesh]:
    """Yield a mesh in which this process is a rank; tensors of it stay usable afterwards."""
    size = 1
    for of_dimension in sizes:
        size *= of_dimension
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield init_device_mesh("cpu", sizes)
    finally:
        dist.destroy_process_group()


def shard_of_two(whole: torch.Tensor, rank: int) -> DTensor:
    """Return rows of a tensor as the shard of one of two ranks."""
    own = torch.chunk(whole, 2)[rank].clone()
    with mesh_of(2, rank=rank) as mesh:
        return DTensor.from_local(own, mesh, [Shard(0)], shape=whole.shape, stride=whole.stride())
