"""What a backend needs of the processes of workers, and of their hosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ..link.links import MasterLink
from ..store import HostLinks

__all__ = ["Nodes", "WorkerProcesses"]


class WorkerProcesses(Protocol):
    """The processes of the workers, and the connections to them."""

    def start(self) -> MasterLink:
        """Start all, and wait until each has made its objects.

        Raises:
            FlowError: one of them failed, with its traceback.
        """

    def why(self, worker: int) -> str:
        """Return how the process of a worker that has left has ended."""

    def kill(self, worker: int, reason: str) -> None:
        """End the process of a worker at once, also one that is stopped, or have nothing more to do with it."""

    def restarts(self, worker: int) -> bool:
        """Return whether a worker that has left is started again, or has been."""

    def close(self) -> None:
        """End all; idempotent."""


class Nodes(Protocol):
    """The nodes of workers that are not all on this host."""

    def links(self) -> HostLinks:
        """Return by what the store of the master serves other hosts, and reads from them."""

    def nodes(self) -> Mapping[int, str]:
        """Return the node of each worker, once they have begun."""

    def free_bytes(self) -> int:
        """Return what /dev/shm had free when workers began, on the host with the least."""
