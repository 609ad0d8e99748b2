"""What Ray runs on each node: workers with a broker of their own, joined with the broker of the student."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import ConfigError
from ..link import HostLink
from ..trust import TlsFiles
from .fleet import Fleet

__all__ = ["Host", "HostPlan"]

logger = logging.getLogger(__name__)

#: Before Ray starts a host again that did not get so far as to serve, seconds.
_PAUSE_S = 5.0


@dataclass(frozen=True)
class HostPlan:
    """What each host does; Ray brings it there.

    Attributes:
        make_worker: The function that returns a worker, pickled by reference.
        version: Version of this package in the process that made the fleet.
        link: Address of the link of the student's host.
        token: Token of that link.
        n_workers: Number of workers, or the fewest and the most.
        start_timeout_s: How long they may take to serve.
        max_restarts: Failures in a row after which a worker is given up.
    """

    make_worker: bytes = field(repr=False)
    version: str
    link: str
    token: str = field(repr=False)
    n_workers: int | tuple[int, int]
    start_timeout_s: float
    max_restarts: int


class Host:
    """The workers of one node, in an actor of Ray. Calls are made one after the other."""

    def __init__(self, plan: HostPlan) -> None:
        import ray

        self._node = ray.util.get_node_ip_address()
        self._parts = contextlib.ExitStack()
        self._error: Exception | None = None
        try:
            self._start(plan)
        except Exception as error:
            self._parts.close()
            # Ray would not start it again after an exception here.
            if ray.get_runtime_context().was_current_actor_reconstructed:
                logger.exception("the host at %s did not start again", self._node)
                time.sleep(_PAUSE_S)
                os._exit(1)
            self._error = error

    def name(self) -> str:
        """Return the address of its node and its process, once all workers serve.

        Raises:
            ConfigError: The node cannot import the function, or has another version of this package.
            FleetError: A worker failed before it served.
        """
        if self._error is not None:
            raise self._error
        return f"{self._node}:{os.getpid()}"

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

    def _start(self, plan: HostPlan) -> None:
        import ray

        from .. import __version__

        if __version__ != plan.version:
            raise ConfigError(
                f"node {self._node} has softs-fast {__version__}, and the driver has {plan.version}: install one version on both"
            )
        try:
            make_worker = pickle.loads(plan.make_worker)
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"node {self._node} cannot import make_worker: {error}; bring its module there, as by "
                'ray.init(runtime_env={"working_dir": "."})'
            ) from None
        gpus = [int(gpu) if str(gpu).isdigit() else gpu for gpu in ray.get_gpu_ids()]
        fleet = Fleet(
            make_worker,
            plan.n_workers,
            gpus=gpus or None,
            start_timeout_s=plan.start_timeout_s,
            max_restarts=plan.max_restarts,
        )
        self._fleet = self._parts.enter_context(fleet)
        self._link = self._parts.enter_context(self._joined(plan))

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
