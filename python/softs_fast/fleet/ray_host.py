"""What Ray runs on each node: workers with a broker of their own, joined with the broker of the student."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..link import HostLink
from ..trust import TlsFiles
from .autoscaler import Loads
from .fleet import Fleet
from .fork_server import server_for
from .importable import hide_main
from .threads import share

__all__ = ["Host", "HostLoad", "HostPlan"]

logger = logging.getLogger(__name__)

#: A process that has not asked for so long, seconds, has ended.
_LEAVE_S = 60.0
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
        libraries: Libraries that make_worker has brought into the process that made the fleet, or others have.
    """

    make_worker: bytes = field(repr=False)
    version: str
    link: str
    token: str = field(repr=False)
    n_workers: int | tuple[int, int]
    start_timeout_s: float
    max_restarts: int
    libraries: tuple[str, ...]


@dataclass(frozen=True)
class HostLoad:
    """What a host has measured since it was asked before.

    Attributes:
        busy: Share of its workers that were in calls, 0 to 1; 0 if it is not known.
        students: Of each student of other processes than that of the fleet, as in `Load`.
    """

    busy: float
    students: Sequence[tuple[float, float]]


@dataclass
class _Guest:
    """A process with students beside that of the fleet."""

    link: HostLink
    asked_s: float = 0.0
    students: Sequence[tuple[float, float]] = ()


class Host:
    """The workers of one node, in an actor of Ray. Calls are made one after the other."""

    def __init__(self, plan: HostPlan) -> None:
        import ray

        self._loads: Loads | None = None
        self._node = ray.util.get_node_ip_address()
        self._parts = contextlib.ExitStack()
        self._error: Exception | None = None
        #: By the addresses of their links.
        self._guests: dict[str, _Guest] = {}
        self._hosts: list[Any] = []
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

    def join(self, address: str, token: str, students: Sequence[tuple[float, float]]) -> list[Any]:
        """Join the broker of another process than that of the fleet, which asks again as long as it lives.

        Args:
            address: Address of its link.
            token: Token of its link.
            students: What its students have got and how long they have waited since it asked before, as in `Load`.

        Returns:
            All hosts of the fleet; none if they are those that the fleet began with.
        """
        self._forget_guests()
        if address not in self._guests:
            self._guests[address] = _Guest(self._joined(address, token))
        guest = self._guests[address]
        guest.asked_s, guest.students = time.monotonic(), students
        return self._hosts

    def load(self, hosts: list[Any]) -> HostLoad:
        """Return what was measured since the call before.

        Args:
            hosts: All hosts of the fleet, which guests are told.

        Raises:
            SoftsError: the broker does not answer.
        """
        self._hosts = hosts
        self._forget_guests()
        if self._loads is None:
            self._loads = self._fleet._loads()
        load = self._loads.look()
        busy = load.n_busy / load.n_serving if load is not None and load.n_serving else 0.0
        return HostLoad(busy, [one for guest in self._guests.values() for one in guest.students])

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
        end_s = time.monotonic() + timeout_s
        for link in (self._link, *(guest.link for guest in self._guests.values())):
            link.drain(max(0.0, end_s - time.monotonic()))
            link.close()
        self._parts.close()

    def _forget_guests(self) -> None:
        for address, guest in list(self._guests.items()):
            if time.monotonic() - guest.asked_s > _LEAVE_S:
                del self._guests[address]
                guest.link.close()

    def _start(self, plan: HostPlan) -> None:
        import ray

        from .. import __version__

        if __version__ != plan.version:
            raise ConfigError(
                f"node {self._node} has softs-fast {__version__}, and the driver has {plan.version}: install one version on both"
            )
        # That of an actor is Ray's own: with it each worker would import Ray, which takes half a second.
        hide_main()
        # It imports torch while this process does, for make_worker: one after the other they would take twice as long.
        most = plan.n_workers if isinstance(plan.n_workers, int) else max(plan.n_workers)
        server_for(share(most + 1, os.environ), plan.libraries)
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
        self._link = self._parts.enter_context(self._joined(plan.link, plan.token))

    def _joined(self, address: str, token: str) -> HostLink:
        # Others cannot read it, and the link does so once.
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "token")
            path.touch(0o600)
            path.write_text(token)
            return HostLink(
                self._fleet.endpoints.market,
                connect=[address],
                control_endpoint=self._fleet.endpoints.control,
                credentials=TlsFiles(token_file=path),
            )
