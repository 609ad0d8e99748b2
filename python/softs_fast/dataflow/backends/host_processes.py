"""Workers of a flow on several hosts: others start them, and this process waits for them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path

from ...errors import ConfigError, FlowError
from ..control import ControlLimits, read_token
from ..declare.declaration import Declaration
from ..moves import HostLinks
from ..wire.control import ControlMaster
from ..wire.links import Joined, Left, LinkEvent, MasterLink, Received
from ..wire.messages import Declared, End, Message, Ready, Refused
from ..worker.groups import has_groups

__all__ = ["HostProcesses"]

logger = logging.getLogger(__name__)

#: One wait for workers.
_SLICE_S = 0.5
#: So often the log says which workers are missing, seconds.
_PROGRESS_S = 10.0


class HostProcesses:
    """The processes of a flow, which `softs-fast flow-worker` or `run_worker` has started, on any host.

    Args:
        declaration: of the master's flow.
        listen: where workers connect to.
        token_file: with what they have to have; mode 0600.
        start_timeout_s: how long the workers may take until their roles are made.
        dead_after_s: seconds without a sign of life after which a worker on another host has left.

    Raises:
        ConfigError: the token file or the endpoint cannot be used, or a role is on several workers.
    """

    def __init__(
        self,
        declaration: Declaration,
        listen: str,
        token_file: Path,
        start_timeout_s: float,
        dead_after_s: float,
    ) -> None:
        if not listen.startswith("tcp://"):
            raise ConfigError(f"listen is {listen!r}; need tcp://HOST:PORT")
        if not start_timeout_s > 0:
            raise ConfigError(f"start_timeout_s must be above 0, have {start_timeout_s}")
        if has_groups(declaration):
            names = ", ".join(role.name for role in declaration.roles if len(role.on) > 1)
            raise ConfigError(
                f"roles on several workers: {names}; on several hosts each role has one worker at present"
            )
        self._limits = ControlLimits(dead_after_s=dead_after_s)
        self._declaration = declaration
        self._listen = listen
        self._token = read_token(token_file)
        self._start_timeout_s = start_timeout_s
        self._joined: dict[int, Joined] = {}
        self._nodes: dict[int, str] = {}

    def links(self) -> HostLinks:
        """Return by what the store of the master serves other hosts; workers know the host of the master."""
        host = self._listen.removeprefix("tcp://").rpartition(":")[0]
        return HostLinks(self._token, listen=f"tcp://{host}:0", stall_s=self._limits.dead_after_s)

    def nodes(self) -> Mapping[int, str]:
        """Return the node of each worker."""
        return self._nodes

    def start(self) -> MasterLink:
        """Wait until each worker has joined, has the same flow, and has made its roles.

        Raises:
            FlowError: one of them failed, or they took too long; the text has the numbers of those that are missing.
            EndpointInUse: a process listens there already.
            ConfigError: the endpoint is malformed.
        """
        self._joined, self._nodes = {}, {}
        link = ControlMaster(self._token, listen=self._listen, limits=self._limits)
        try:
            self._await(link)
        except BaseException:
            for worker in self._joined:
                link.send(worker, End())
            link.close()
            raise
        return _Begun(link, list(self._joined.values()))

    def why(self, worker: int) -> str:
        """Nothing is known of a process of another host but the end of its connection."""
        return ""

    def kill(self, worker: int) -> None:
        """A process of another host cannot be ended from here; it ends when the flow does."""

    def restarts(self, worker: int) -> bool:
        """Workers are not started again: that is for what has started them."""
        return False

    def close(self) -> None:
        """Workers end by themselves when the flow does."""

    def _await(self, link: ControlMaster) -> None:
        numbers = self._declaration.workers
        begun_s = said_s = time.monotonic()
        logger.info("waiting at %s for workers %s", link.endpoint, _listed(numbers))
        while missing := [worker for worker in numbers if worker not in self._nodes]:
            for event in link.receive(_SLICE_S):
                self._take(link, event)
            now_s = time.monotonic()
            absent = [worker for worker in missing if worker not in self._joined]
            text = (
                f"workers {_listed(missing)} of {_listed(numbers)} have not begun after {now_s - begun_s:.0f} s at "
                f"{link.endpoint}; of these {_listed(absent) if absent else 'none'} have not connected"
            )
            if now_s - begun_s > self._start_timeout_s:
                raise FlowError(f"{text}; start them with softs-fast flow-worker, or raise start_timeout_s")
            if now_s - said_s > _PROGRESS_S:
                said_s = now_s
                logger.warning("%s", text)

    def _take(self, link: ControlMaster, event: LinkEvent) -> None:
        worker = event.worker
        if worker not in self._declaration.workers:
            if isinstance(event, Joined):
                numbers = _listed(self._declaration.workers)
                logger.warning("worker %d of host %s has no role; there are %s", worker, event.host, numbers)
                link.send(worker, End())
            return
        match event:
            case Joined():
                self._joined[worker] = event
                link.send(worker, Declared(tuple(self._declaration.lines())))
            case Received(message=Ready(node=node)):
                self._nodes[worker] = node
                logger.info("worker %d of host %s is ready", worker, self._joined[worker].host)
            case Received(message=Refused(reason=reason)):
                raise FlowError(f"worker {worker} of host {self._joined[worker].host} cannot begin: {reason}")
            case Left(reason=reason):
                raise FlowError(f"worker {worker} has left before all had begun: {reason}")
            case _:
                pass


class _Begun:
    """The link of workers that have joined: it reports them once more, to the one that uses it from now on."""

    def __init__(self, link: ControlMaster, joined: list[Joined]) -> None:
        self._link = link
        self._joined = joined

    def send(self, worker: int, message: Message) -> None:
        """As `MasterLink.send`."""
        self._link.send(worker, message)

    def receive(self, timeout_s: float) -> list[LinkEvent]:
        """As `MasterLink.receive`."""
        joined, self._joined = self._joined, []
        return list(joined) if joined else self._link.receive(timeout_s)

    def ask(self, worker: int, what: str, timeout_s: float) -> bytes:
        """As `MasterLink.ask`.

        Raises:
            FlowError: see there.
        """
        return self._link.ask(worker, what, timeout_s)

    def close(self) -> None:
        """As `MasterLink.close`."""
        self._link.close()


def _listed(numbers: list[int] | tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))
