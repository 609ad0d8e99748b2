"""What Ray runs on each node: workers with a broker of their own, joined with the broker of the student."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..link import HostLink
from ..trust import TlsFiles
from .fleet import Fleet

__all__ = ["Host", "HostPlan"]


@dataclass(frozen=True)
class HostPlan:
    """What each host does; Ray brings it there.

    Attributes:
        version: Version of this package in the process that made the fleet.
        link: Address of the link of the student's host.
        token: Token of that link.
        n_workers: Number of workers.
        start_timeout_s: How long they may take to serve.
        max_restarts: Failures in a row after which a worker is given up.
    """

    version: str
    link: str
    token: str
    n_workers: int
    start_timeout_s: float
    max_restarts: int


class Host:
    """The workers of one node, in an actor of Ray. Calls are made one after the other."""

    def __init__(self, plan: HostPlan, make_worker: Callable[[], Any]) -> None:
        import ray

        from .. import __version__

        node = ray.util.get_node_ip_address()
        if __version__ != plan.version:
            raise ConfigError(
                f"node {node} has softs-fast {__version__}, and the driver has {plan.version}: install the same version on both"
            )
        gpus = [int(gpu) for gpu in ray.get_gpu_ids()]
        self._parts = contextlib.ExitStack()
        try:
            self._fleet = self._parts.enter_context(
                Fleet(
                    make_worker,
                    plan.n_workers,
                    gpus=gpus or None,
                    start_timeout_s=plan.start_timeout_s,
                    max_restarts=plan.max_restarts,
                )
            )
            self._link = self._parts.enter_context(self._joined(plan))
        except BaseException:
            self._parts.close()
            raise
        self._name = f"{node}:{os.getpid()}"

    def name(self) -> str:
        """Return the address of its node and its process; it answers once all workers serve."""
        return self._name

    def states(self) -> dict[str, str]:
        """Return the state of each worker by its name, as `Fleet.states`."""
        return self._fleet.states()

    def close(self, timeout_s: float) -> None:
        """Give back what no worker has begun, send what is being made, and end the workers.

        Args:
            timeout_s: Seconds to wait for what is being made.

        Raises:
            FleetError: A worker was given up.
        """
        self._link.drain(timeout_s)
        self._parts.close()

    def _joined(self, plan: HostPlan) -> HostLink:
        # Others cannot read it, and the link does so once.
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "token")
            path.touch(0o600)
            path.write_text(plan.token)
            return HostLink(
                self._fleet.endpoints.market,
                connect=[plan.link],
                control_endpoint=self._fleet.endpoints.control,
                credentials=TlsFiles(token_file=path),
            )
