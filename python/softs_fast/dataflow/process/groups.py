"""Process groups of torch.distributed for roles on several workers, and their meshes."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch

from ...process import Closing
from ...trust import Der
from ..declare.declaration import Declaration
from ..declare.ranks import peers_along
from ..declare.roles import Placement
from ..declare.sums import RankGroup

__all__ = ["Groups", "has_groups"]

#: How long one worker may wait for the others; the master says earlier which ones are missing.
_MEET_S = 1800.0
#: How long workers of a role may wait in `agree` for one that is in an earlier step: deadlines are the master's, and the
#: end of a process ends the wait.
_AGREE = timedelta(days=365)


def has_groups(declaration: Declaration) -> bool:
    """Return whether a role of a flow is on several workers."""
    return any(len(role.on) > 1 for role in declaration.roles)


class Groups(Closing):
    """The default process group of all workers of a flow, and a mesh for each role on several; one for each process.

    All workers make it, in any order: it is complete when the last one does. They use the backend "softs"; those of one host, which
    meet in a file, gloo before torch 2.15.

    Args:
        declaration: Declaration of the flow.
        worker: Number of this worker.
        meeting: Path of a file, empty when the first worker opens it, that all workers can open; or host and port of
            the store of the master.
        credentials: What workers of several hosts show each other.

    Raises:
        ConfigError: workers are on several hosts, and torch is older than 2.15.
        RuntimeError: a worker did not come, or another process group is there already.
    """

    def __init__(
        self,
        declaration: Declaration,
        worker: int,
        meeting: str | tuple[str, int],
        credentials: Der | None = None,
    ) -> None:
        # These imports take a second, which flows without such roles need not spend.
        import torch.distributed as dist
        from torch.distributed.device_mesh import DeviceMesh

        from ...collectives import LinkStore, host_backend, hosts_backend

        if isinstance(meeting, str):
            # On one host. Groups of gloo that a program makes among several need the network.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        backend = host_backend() if isinstance(meeting, str) else hosts_backend()
        self._worker = worker
        self._workers = workers = declaration.workers
        store = (
            dist.FileStore(meeting, len(workers))
            if isinstance(meeting, str)
            else LinkStore(*meeting, credentials=credentials, timeout_s=_MEET_S)
        )
        # torch keeps no reference to one in Python.
        self._store = store
        self._meshes: dict[str, Any] = {}
        self._groups: dict[str, Any] = {}
        if store.add(f"processes of worker {worker}", 1) > 1:
            # It has been started again: groups keep the processes that they were made of, and its roles need none.
            return
        dist.init_process_group(
            backend,
            store=store,
            rank=workers.index(worker),
            world_size=len(workers),
        )
        try:
            # Each group is made by all workers, those that are not in it, too.
            for role in declaration.roles:
                if len(role.on) > 1:
                    numbers = [workers.index(one) for one in role.on]
                    names = tuple(name for name, _ in role.layout.dims)
                    sizes = [size for _, size in role.layout.dims]
                    self._meshes[role.name] = DeviceMesh(
                        "cpu", torch.tensor(numbers, device="cpu").reshape(sizes), mesh_dim_names=names
                    )
                    self._groups[role.name] = dist.new_group(numbers, timeout=_AGREE)
        except BaseException:
            self.close()
            raise

    def mesh(self, role: Placement) -> Any:
        """Return the `DeviceMesh` of a role; None if it has one worker."""
        return self._meshes.get(role.name)

    def group(self, role: Placement) -> Any:
        """Return the process group of all workers of a role, by their numbers; None if it has one worker."""
        return self._groups.get(role.name)

    def ranks(self, role: Placement) -> dict[str, RankGroup]:
        """Return the ranks along each dimension of a role in which there are several; empty if it has one worker."""
        import torch.distributed as dist

        mesh, found = self.mesh(role), {}
        for dim, peers in (peers_along(role, self._worker) if mesh is not None else {}).items():
            group = mesh.get_group(dim)
            order = [dist.get_group_rank(group, self._workers.index(one)) for one in peers]
            found[dim] = RankGroup(group, order)
        return found

    def agree(self, role: Placement, is_well: bool) -> bool:
        """Return whether all workers of a role say that it is well; each of them calls this.

        Raises:
            RuntimeError: one of them has ended.
        """
        import torch.distributed as dist

        said = torch.tensor([int(is_well)], device="cpu")
        dist.all_reduce(said, dist.ReduceOp.MIN, group=self._groups[role.name])
        return bool(said.item())

    def close(self) -> None:
        """End all groups; idempotent. No other worker need do so."""
        import torch.distributed as dist

        self._meshes.clear()
        self._groups.clear()
        if dist.is_initialized():
            dist.destroy_process_group()
