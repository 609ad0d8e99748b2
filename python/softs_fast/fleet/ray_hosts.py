"""The hosts of a fleet on Ray: where they are, what they say, and how many there are."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError, FleetError, SoftsError
from .ray_cluster import remote_class
from .ray_host import Host, HostLoad, HostPlan

__all__ = ["RayHosts"]

logger = logging.getLogger(__name__)

#: How long hosts may take to end with what they are making, seconds.
_DRAIN_S = 10.0
#: How long they may take to end besides, seconds.
_END_S = 5.0
#: Until the first warning of hosts that do not serve yet, and between two of them, seconds.
_FIRST_WARN_S, _WARN_S = 3.0, 10.0
#: How long a host may take to say how it is, seconds.
_ANSWER_S = 1.0


class RayHosts:
    """The actors of a fleet, each with workers of its node.

    Args:
        ray: Module of Ray, connected to a cluster.
        resources: Resources of each.
        plan: What each does.

    Attributes:
        actors: Handles of the actors, in the order of their numbers.
        is_ready: Whether what they are making is waited for at their end.
    """

    def __init__(self, ray: Any, resources: dict[str, float], plan: HostPlan) -> None:
        self._ray, self._wanted, self._plan = ray, resources, plan
        self.actors: list[Any] = []
        self.is_ready = False
        self._group: Any = None
        #: Of those that were added: what says that one serves, and when it was added.
        self._starting: dict[Any, tuple[Any, float]] = {}
        #: Of those that were removed: what says that one has sent everything, and until when it may take.
        self._ending: dict[Any, tuple[Any, float]] = {}

    def place(self, n_hosts: int) -> None:
        """Have Ray start an actor on each of so many nodes.

        Raises:
            ConfigError: Ray refuses the resources.
        """
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        resources = self._wanted
        try:
            self._group = self._ray.util.placement_group([resources] * n_hosts, strategy="STRICT_SPREAD")
            # A call that waits for its host is made again where Ray starts the host again.
            self._actor = remote_class(self._ray, Host, resources)
        except ValueError as error:
            raise ConfigError(
                f"Ray refuses the resources of a host, {_as_text(resources)}: {error}"
            ) from None
        for index in range(n_hosts):
            bundle = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
            self.actors.append(self._actor.options(scheduling_strategy=bundle).remote(self._plan))

    def await_all(self, timeout_s: float) -> None:
        """Wait until all hosts serve, with a warning from time to time.

        Raises:
            ConfigError: a node cannot import the function, or has another version of this package.
            FleetError: a host has failed, or they took too long.
        """
        begin_s = time.monotonic()
        answers = [host.name.remote() for host in self.actors]
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
            (host.name.options(**once).remote(), host.states.options(**once).remote())
            for host in list(self.actors)
        ]
        flat = [answer for pair in answers for answer in pair]
        ready, _ = self._ray.wait(flat, num_returns=len(flat), timeout=_ANSWER_S)
        states: dict[str, str] = {}
        for name, workers in answers:
            if name in ready and workers in ready:
                with contextlib.suppress(self._ray.exceptions.RayError):
                    host = self._ray.get(name)
                    states |= {f"{host}/{worker}": state for worker, state in self._ray.get(workers).items()}
        return states

    def aim(self, number: int, reason: str) -> None:
        """Have so many hosts from now on: begin some where Ray has room, or end those with the largest numbers."""
        while len(self.actors) < number:
            actor = self._actor.options(scheduling_strategy="SPREAD").remote(self._plan)
            self.actors.append(actor)
            self._starting[actor] = actor.name.remote(), time.monotonic()
        while len(self.actors) > number:
            actor = self.actors.pop()
            if self._starting.pop(actor, None) is None:
                end = actor.close.options(max_task_retries=0).remote(_DRAIN_S)
                self._ending[actor] = end, time.monotonic() + _DRAIN_S + _END_S
            else:
                self._ray.kill(actor)

    def failed_to_start(self) -> int | None:
        """Return the smallest number of a host that was added and failed, or found no room in time, if there is one."""
        for actor, (end, until) in list(self._ending.items()):
            if time.monotonic() > until or self._is_done(end):
                del self._ending[actor]
                self._ray.kill(actor)
        for actor, (name, since) in list(self._starting.items()):
            if self._is_done(name):
                try:
                    self._ray.get(name)
                    del self._starting[actor]
                    continue
                except self._ray.exceptions.RayError as error:
                    logger.warning("a host that was added has failed: %s", getattr(error, "cause", error))
            elif time.monotonic() - since < self._plan.start_timeout_s:
                continue
            return self.actors.index(actor)
        return None

    def loads(self) -> list[HostLoad]:
        """Return what was measured on each host since the last call; nothing if one of them does not answer."""
        serving = [actor for actor in self.actors if actor not in self._starting]
        asked = [actor.load.options(max_task_retries=0).remote(self.actors) for actor in serving]
        ready, late = self._ray.wait(asked, num_returns=len(asked), timeout=_ANSWER_S)
        try:
            return [] if late else self._ray.get(ready)
        except self._ray.exceptions.RayError:
            return []

    def close(self) -> None:
        """End all actors, with what they are making if the fleet has been ready.

        Raises:
            FleetError: a host could not say that it has ended well.
        """
        # Without Ray, which the program has left, its actors have ended.
        if not self._ray.is_initialized():
            return
        try:
            if self.is_ready:
                self._end_hosts()
        finally:
            for actor in (*self.actors, *self._ending):
                self._ray.kill(actor)
            if self._group is not None:
                self._ray.util.remove_placement_group(self._group)

    def _is_done(self, answer: Any) -> bool:
        return bool(self._ray.wait([answer], timeout=0)[0])

    def _end_hosts(self) -> None:
        serving = [actor for actor in self.actors if actor not in self._starting]
        ends = [actor.close.options(max_task_retries=0).remote(_DRAIN_S) for actor in serving]
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
