"""The fleet on Ray: a broker and a link in this process, and one actor of workers on each of some nodes."""

from __future__ import annotations

import contextlib
import multiprocessing.util
import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from .. import __version__
from ..distill import Worker
from ..errors import ConfigError, FleetError
from ..market import Supplier
from ..process import check_process
from .autoscaler import Autoscaler, Loads
from .fleet import Fleet, checked_bounds
from .fork_server import libraries_here
from .orders import Orders
from .private_broker import PrivateBroker
from .ray_client import RayFleetClient, StudentLink
from .ray_cluster import connected_ray
from .ray_host import HostPlan
from .ray_hosts import RayHosts
from .scaling import Load

__all__ = ["RayFleet"]


class RayFleet(Orders):
    """Workers on the nodes of a Ray cluster, and a broker and a link in this process, for the time of a ``with`` block.

        def make_worker():
            return sf.Supplier(batch_generator_fn=generate, product_ids=["digits"], batch_config=config)

        ray.init()
        with sf.RayFleet(teachers.make_worker, hosts=4, n_workers=8, resources={"GPU": 8}) as fleet:
            for batch in fleet.loader("digits", config, num_slots=256, batch_size=64):
                ...

    Ray places one actor on each of `hosts` nodes. It runs the workers of its node, with a broker of their own, and joins
    that one with the broker of this process by an encrypted link (docs/hosts.md); its token travels in Ray's own
    channel. So samples never pass through Ray's object store. A worker that fails is started again by its host, as in a
    `Fleet`; an actor or a node that is lost by Ray, where the resources are.

    The block begins when all hosts serve. At its end, what workers are making is sent, for 10 s at most. With this
    process, even if it is killed, Ray ends the actors, and these their workers.

    A fleet that is passed to tasks or actors of Ray, such as the workers of Ray Train, has `loader`, `student` and `stats`
    there too, with a broker and a link of that process, which all hosts join.

    Args:
        make_worker: called in processes of the nodes without arguments; returns a `Supplier` or a `Worker` that is not
            started. It is a function of a module that each node can import, or a `functools.partial` of one.
        hosts: number of nodes, 1 to 1024; or the fewest and the most, as ``(2, 16)``: then hosts are added, where Ray has
            room, while students wait, and removed while workers idle.
        n_workers: number of workers on each node; or the fewest and the most, as of a `Fleet`.
        resources: resources that Ray reserves for each host, such as ``{"CPU": 8, "GPU": 8}``; default: a CPU for each worker.
            Worker i sees only GPU i of these, modulo their number.
        start_timeout_s: how long the start of the block waits for nodes and workers.
        max_restarts: failures in a row after which a worker is given up.

    Raises:
        ConfigError: an argument is out of range, or `make_worker` is of a program and not of a module.
    """

    def __init__(
        self,
        make_worker: Callable[[], Worker | Supplier],
        hosts: int | tuple[int, int] = 1,
        n_workers: int | tuple[int, int] = 1,
        *,
        resources: Mapping[str, float] | None = None,
        start_timeout_s: float = 120.0,
        max_restarts: int = 5,
    ) -> None:
        self._bounds = checked_bounds("hosts", hosts)
        # It starts nothing; the fleet of each host takes the same arguments.
        Fleet(make_worker, n_workers, start_timeout_s=start_timeout_s, max_restarts=max_restarts)
        self._make_worker = pickle.dumps(make_worker)
        if b"__main__" in self._make_worker:
            raise ConfigError(
                "make_worker is of this program, which nodes cannot import; put it into a module of its own"
            )
        most = n_workers if isinstance(n_workers, int) else max(n_workers)
        self._n_workers = n_workers
        self._resources: dict[str, float] = {"CPU": most} if resources is None else dict(resources)
        self._start_timeout_s, self._max_restarts = start_timeout_s, max_restarts
        self._parts: _Parts | None = None
        self._pid = os.getpid()

    def start(self) -> None:
        """Start the broker, the link and the hosts, and wait until all serve; ``with`` calls it.

        Ray is connected by `ray.init()` if the program has not done so.

        Raises:
            ConfigError: Ray is not installed, or refuses the resources; or a node has another version of this package, or
                cannot import `make_worker`.
            FleetError: a host failed before it served, with its traceback, or nodes or workers took too long; or this
                fleet was closed.
        """
        if self._parts is not None:
            self._started()
            return
        ray = connected_ray()
        link = StudentLink(ray.util.get_node_ip_address())
        plan = HostPlan(
            self._make_worker,
            __version__,
            link.address,
            link.token,
            self._n_workers,
            self._start_timeout_s,
            self._max_restarts,
            libraries_here(),
        )
        self._parts = parts = _Parts(link, RayHosts(ray, self._resources, plan))
        # Also if the block is never left, or there is none. Not in a fork.
        self._end = multiprocessing.util.Finalize(self, parts.close, exitpriority=10)
        try:
            parts.hosts.place(self._bounds[0])
            parts.hosts.await_all(self._start_timeout_s)
            if self._bounds[0] < self._bounds[1]:
                parts.scale_by_load(self._bounds)
        except BaseException:
            parts.hosts.is_ready = False
            self._end()
            raise

    def close(self) -> None:
        """End the hosts with what their workers are making, the link and the broker; idempotent. It cannot start again.

        In a fork this does nothing.

        Raises:
            FleetError: a host could not say that it has ended well: a worker was given up, or its node is lost.
        """
        if self._parts is not None and os.getpid() == self._pid:
            self._end()

    def states(self) -> dict[str, str]:
        """Return the state of each worker, by node, process of the host and worker: as `Fleet.states`.

        A host that Ray starts again at the moment is left out.
        """
        return self._started().hosts.states()

    def __enter__(self) -> RayFleet:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except FleetError:
            if kind is None:
                raise

    def __reduce__(self) -> tuple[Any, ...]:
        return RayFleetClient, (self._started().hosts.actors,)

    def _broker(self) -> PrivateBroker:
        return self._started().link.broker

    def _started(self) -> _Parts:
        check_process(self._pid, "the fleet")
        if self._parts is None or not self._end.still_active():
            raise FleetError("the fleet is not running: use it within its with block; it cannot start again")
        return self._parts


@dataclass
class _Parts:
    """What runs while a fleet on Ray runs."""

    link: StudentLink
    hosts: RayHosts
    autoscaler: Autoscaler | None = None

    def scale_by_load(self, bounds: tuple[int, int]) -> None:
        looks = _Looks(self.link.broker.endpoints.frontend, self.hosts)
        self.autoscaler = Autoscaler(looks, self.hosts, bounds, "host")

    def close(self) -> None:
        with contextlib.closing(self.link):
            if self.autoscaler is not None:
                self.autoscaler.end()
                self.autoscaler.join()
            self.hosts.close()


class _Looks:
    """The load of all hosts: of workers as each host measures it, of students by this process and those of clients."""

    def __init__(self, frontend: str, hosts: RayHosts) -> None:
        self._own = Loads(frontend, set)
        self._hosts = hosts
        self._n_before = 0

    def look(self) -> Load | None:
        own, loads = self._own.look(), self._hosts.loads()
        n_before, self._n_before = self._n_before, len(loads)
        if own is None or not loads:
            return None
        n_served = min(n_before, len(loads))
        # A host has measured nothing when it is asked for the first time.
        n_busy = min(sum(load.busy for load in loads), float(n_served))
        # Clients tell all hosts the same.
        students = [*own.students, *loads[0].students]
        return Load(n_served, n_busy, students)

    def close(self) -> None:
        self._own.close()
