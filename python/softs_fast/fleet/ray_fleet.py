"""The fleet on Ray: a broker and a link in this process, and one actor of workers on each of some nodes."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing.util
import os
import pickle
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..configs import BatchConfig
from ..distill import StudentClient, Worker
from ..errors import ConfigError, FleetError, SoftsError
from ..link import HostLink
from ..market import BrokerStats, Supplier
from ..process import check_process
from ..trust import TlsFiles, bracketed, write_token
from .fleet import Fleet
from .private_broker import PrivateBroker
from .ray_host import Host, HostPlan

if TYPE_CHECKING:
    from ..loader import SoftDataLoader

__all__ = ["RayFleet"]

logger = logging.getLogger(__name__)

#: How long hosts may take to end with what they are making, seconds.
_DRAIN_S = 10.0
#: How long they may take to end besides, seconds.
_END_S = 5.0
#: Until the first warning of hosts that do not serve yet, and between two of them, seconds.
_FIRST_WARN_S, _WARN_S = 3.0, 10.0


class RayFleet:
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

    Args:
        make_worker: called in processes of the nodes without arguments; returns a `Supplier` or a `Worker` that is not
            started. It is a function of a module that each node can import, or a `functools.partial` of one.
        hosts: number of nodes, at least 1.
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
        hosts: int = 1,
        n_workers: int | tuple[int, int] = 1,
        *,
        resources: Mapping[str, float] | None = None,
        start_timeout_s: float = 120.0,
        max_restarts: int = 5,
    ) -> None:
        if not isinstance(hosts, int) or hosts < 1:
            raise ConfigError(f"hosts must be a number, at least 1, got {hosts!r}")
        # It starts nothing; the fleet of each host takes the same arguments.
        Fleet(make_worker, n_workers, start_timeout_s=start_timeout_s, max_restarts=max_restarts)
        self._make_worker = pickle.dumps(make_worker)
        if b"__main__" in self._make_worker:
            raise ConfigError(
                "make_worker is of this program, which nodes cannot import; put it into a module of its own"
            )
        most = n_workers if isinstance(n_workers, int) else max(n_workers)
        self._n_hosts, self._n_workers = hosts, n_workers
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
        self._parts = parts = _Parts(_ray())
        # Also if the block is never left, or there is none. Not in a fork.
        self._end = multiprocessing.util.Finalize(self, parts.close, exitpriority=10)
        try:
            plan = HostPlan(
                self._make_worker,
                __version__,
                parts.link_address,
                parts.token,
                self._n_workers,
                self._start_timeout_s,
                self._max_restarts,
            )
            parts.place(self._n_hosts, self._resources, plan)
            parts.await_hosts(self._start_timeout_s)
        except BaseException:
            parts.is_ready = False
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
        return self._started().states()

    def stats(self) -> BrokerStats:
        """What the broker of this process counts; see `Broker.stats`."""
        return self._started().broker.stats()

    def loader(self, product_id: str, batch_config: BatchConfig, **arguments: Any) -> SoftDataLoader:
        """Return a `SoftDataLoader` of a product of this fleet; for suppliers. `arguments` are those of that class."""
        return self._started().broker.loader(product_id, batch_config, **arguments)

    def student(
        self, slot_count: int, batch_config: BatchConfig, rank: int = 0, **arguments: Any
    ) -> StudentClient:
        """Return a `StudentClient`, which sets the model of workers; `arguments` are those of that class."""
        return self._started().broker.student(slot_count, batch_config, rank, **arguments)

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

    def _started(self) -> _Parts:
        check_process(self._pid, "the fleet")
        if self._parts is None or not self._end.still_active():
            raise FleetError("the fleet is not running: use it within its with block; it cannot start again")
        return self._parts


class _Parts:
    """What runs while a fleet on Ray runs."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._hosts: list[Any] = []
        self._group: Any = None
        # Whether what the hosts are making is waited for at the end.
        self.is_ready = False
        self._stack = contextlib.ExitStack()
        try:
            self.broker = PrivateBroker()
            self._stack.callback(self.broker.close)
            path = self.broker.folder / "token"
            self.token = write_token(path)
            link = HostLink(
                self.broker.endpoints.market,
                control_endpoint=self.broker.endpoints.control,
                listen=f"{bracketed(ray.util.get_node_ip_address())}:0",
                credentials=TlsFiles(token_file=path),
            )
            self._stack.callback(link.close)
            path.unlink()
            assert link.address is not None
            self.link_address = link.address
        except BaseException:
            self._stack.close()
            raise

    def place(self, n_hosts: int, resources: dict[str, float], plan: HostPlan) -> None:
        """Have Ray start an actor on each of so many nodes.

        Raises:
            ConfigError: Ray refuses the resources.
        """
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self._wanted = resources
        own = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
        named = {option: resources.get(name, 0) for name, option in own.items()}
        others = {name: number for name, number in resources.items() if name not in own}
        try:
            self._group = self._ray.util.placement_group([resources] * n_hosts, strategy="STRICT_SPREAD")
            # A call that waits for its host is made again where Ray starts the host again.
            actor = self._ray.remote(max_restarts=-1, max_task_retries=-1, resources=others, **named)(Host)
        except ValueError as error:
            raise ConfigError(
                f"Ray refuses the resources of a host, {_as_text(resources)}: {error}"
            ) from None
        for index in range(n_hosts):
            bundle = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
            self._hosts.append(actor.options(scheduling_strategy=bundle).remote(plan))

    def await_hosts(self, timeout_s: float) -> None:
        """Wait until all hosts serve, with a warning from time to time.

        Raises:
            ConfigError: a node cannot import the function, or has another version of this package.
            FleetError: a host has failed, or they took too long.
        """
        begin_s = time.monotonic()
        answers = [host.name.remote() for host in self._hosts]
        wait_s = _FIRST_WARN_S
        while True:
            left_s = begin_s + timeout_s - time.monotonic()
            ready, waiting = self._ray.wait(
                answers, num_returns=len(answers), timeout=max(0.0, min(wait_s, left_s))
            )
            try:
                self._ray.get(ready)
            except self._ray.exceptions.RayError as error:
                raise _cause(error, "has failed") from None
            if not waiting:
                self.is_ready = True
                return
            text = (
                f"{len(ready)} of {len(answers)} hosts serve after {time.monotonic() - begin_s:.0f} s; each needs "
                f"a node of its own with {_as_text(self._wanted)}, and Ray has {self._nodes()}"
            )
            if left_s <= wait_s:
                raise FleetError(text)
            logger.warning("%s", text)
            wait_s = _WARN_S

    def states(self) -> dict[str, str]:
        """Return the state of each worker of the hosts that answer."""
        once = {"max_task_retries": 0}
        answers = [
            (host.name.options(**once).remote(), host.states.options(**once).remote()) for host in self._hosts
        ]
        flat = [answer for pair in answers for answer in pair]
        ready, _ = self._ray.wait(flat, num_returns=len(flat), timeout=1.0)
        states: dict[str, str] = {}
        for name, workers in answers:
            if name in ready and workers in ready:
                with contextlib.suppress(self._ray.exceptions.RayError):
                    host = self._ray.get(name)
                    states |= {f"{host}/{worker}": state for worker, state in self._ray.get(workers).items()}
        return states

    def close(self) -> None:
        """End everything; see `RayFleet.close`."""
        with self._stack:
            # Without Ray, which the program has left, its actors have ended.
            if not self._ray.is_initialized():
                return
            try:
                if self.is_ready:
                    self._end_hosts()
            finally:
                for host in self._hosts:
                    self._ray.kill(host)
                if self._group is not None:
                    self._ray.util.remove_placement_group(self._group)

    def _end_hosts(self) -> None:
        ends = [host.close.options(max_task_retries=0).remote(_DRAIN_S) for host in self._hosts]
        ready, late = self._ray.wait(ends, num_returns=len(ends), timeout=_DRAIN_S + _END_S)
        try:
            self._ray.get(ready)
        except self._ray.exceptions.RayError as error:
            raise _cause(error, "did not end well") from None
        if late:
            raise FleetError(f"{len(late)} of {len(ends)} hosts did not end within {_DRAIN_S + _END_S:.0f} s")

    def _nodes(self) -> str:
        nodes = [
            f"{node['NodeManagerAddress']} with {_as_text({name: node['Resources'].get(name, 0) for name in self._wanted})}"
            for node in self._ray.nodes()
            if node["Alive"]
        ]
        return ", ".join(nodes) or "no node"


def _cause(error: Exception, what: str) -> SoftsError:
    """Return the error of a host, with its own type where that is one of this package."""
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, ConfigError):
        return ConfigError(str(cause))
    return FleetError(f"a host of the fleet {what}: {cause}")


def _as_text(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{number:g} {name}" for name, number in resources.items())


def _ray() -> Any:
    """Return the module of Ray, connected to a cluster.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise ConfigError(f"a fleet on Ray needs it: {error}; pip install 'softs-fast[ray]'") from error
    if not ray.is_initialized():
        ray.init()
    return ray
