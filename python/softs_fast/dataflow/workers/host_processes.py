"""Workers of a flow on several hosts: others start them, and this process waits for them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import ConfigError, FlowError
from ...trust import Address, Place, bracketed
from ..declare.declaration import Declaration
from ..link.events import Joined, Left, LinkEvent, Received
from ..link.messages import Declared, End, Ready, Refused
from ..link.seats import Seats
from ..link.stream import MasterStream, listen_at
from ..process.by_hand import read_credentials
from ..process.groups import has_groups
from ..store import HostLinks
from .host_link import HostLink
from .returns import Returns

if TYPE_CHECKING:
    from ...collectives import StoreServer

__all__ = ["HostOptions", "HostProcesses"]

logger = logging.getLogger(__name__)

#: One wait for workers.
_SLICE_S = 0.5
#: So often the log says which workers are missing, seconds.
_PROGRESS_S = 10.0


@dataclass(frozen=True)
class HostOptions:
    """How a master waits for workers of other hosts.

    Args:
        listen: Place that workers connect to, `tcp://HOST:PORT` or `softs://HOST:PORT/JOB?token_file=FILE`.
        token_file: File with the token that workers must have; mode 0600; see `read_credentials`.
        start_timeout_s: How long the workers may take until their roles are made.
        lost_after_s: Seconds without a sign of life after which a worker on another host has left.
        rejoin_timeout_s: How long another process may take to join with the number of a worker that has left, and to make its
            roles; 0: a worker that has left is lost.
        max_restarts: Failures of a worker in a row after which it is lost.

    Raises:
        ConfigError: a number is out of range.
    """

    listen: str
    token_file: Path | None = None
    start_timeout_s: float = 600.0
    lost_after_s: float = 30.0
    rejoin_timeout_s: float = 300.0
    max_restarts: int = 5

    def __post_init__(self) -> None:
        for name in ("start_timeout_s", "lost_after_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0, have {getattr(self, name)}")
        if not self.rejoin_timeout_s >= 0:
            raise ConfigError(f"rejoin_timeout_s must be at least 0, have {self.rejoin_timeout_s}")
        if self.max_restarts < 0:
            raise ConfigError(f"max_restarts is {self.max_restarts}; it counts failures in a row, from 0")


class HostProcesses:
    """The processes of a flow, which `softs-fast flow worker` or `run_worker` has started, on any host.

    Args:
        declaration: Declaration of the master's flow.
        options: Options that say how the master waits for the workers.

    Raises:
        ConfigError: the place or the token file cannot be used; or roles are on several workers, and torch is older
            than 2.15.
    """

    def __init__(self, declaration: Declaration, options: HostOptions) -> None:
        place = Place.parse(options.listen, "master", scheme="tcp://")
        self._listen = f"tcp://{place.only_address('master')}"
        if has_groups(declaration):
            # Before any worker is waited for.
            from ...collectives import hosts_backend

            hosts_backend()
        self._options = options
        self._declaration = declaration
        self._credentials = read_credentials(place, options.token_file)
        self._nodes: dict[int, str] = {}
        self._free_bytes: dict[int, int] = {}
        self._hosts: dict[int, str] = {}
        self._link: HostLink | None = None
        # Where workers meet to make process groups.
        self._meeting: StoreServer | None = None
        self._returns = Returns(options.rejoin_timeout_s, options.max_restarts)
        self._is_first = True

    def links(self) -> HostLinks:
        """Return by what the store of the master serves other hosts; workers know the host of the master."""
        lost_after_s = self._options.lost_after_s
        return HostLinks(self._credentials, listen=f"tcp://{self._host}:0", lost_after_s=lost_after_s)

    @property
    def _host(self) -> str:
        return bracketed(Address.split(self._listen, "master", "tcp://")[0])

    def nodes(self) -> Mapping[int, str]:
        """Return the node of each worker."""
        return self._nodes

    def free_bytes(self) -> int:
        """Return what /dev/shm had free when workers began, on the host with the least."""
        return min(self._free_bytes.values())

    def start(self) -> MasterStream:
        """Wait until each worker has joined, has the same flow, and has made its roles.

        Raises:
            FlowError: one of them failed, or they took too long; the text has the numbers of those that are missing.
            EndpointInUse: a process listens there already.
            ConfigError: the endpoint is malformed.
        """
        self._nodes = {}
        is_first, self._is_first = self._is_first, False
        native = listen_at(self._listen, self._credentials, lost_after_s=self._options.lost_after_s)
        # Workers that begin anew know no other endpoint.
        self._listen = native.endpoint
        link = HostLink(native, Seats(self._declaration.workers), self._note)
        try:
            if has_groups(self._declaration):
                # This import takes a second, which flows without such roles need not spend.
                from ...collectives import StoreServer

                host, _ = Address.split(self._listen, "master", "tcp://")
                self._meeting = StoreServer(host, credentials=self._credentials)
            port = self._meeting.address[1] if self._meeting is not None else 0
            self._listens(self._listen)
            link.greeting = Declared(tuple(self._declaration.lines()), port, self._host)
            self._await(link, self._options.start_timeout_s if is_first else self._options.rejoin_timeout_s)
        except BaseException:
            if is_first:
                for worker in link.seats.held:
                    link.send(worker, End())
            link.close()
            self.close()
            raise
        link.begin()
        self._returns.clear()
        self._link = link
        return link

    def why(self, worker: int) -> str:
        """Return why a worker is not awaited any more; of the end of its process only its connection tells."""
        return self._returns.why(worker, time.monotonic())

    def kill(self, worker: int, reason: str) -> None:
        """Take nothing more of a worker: its process ends, or begins anew, when it can read that."""
        if self._link is not None:
            self._returns.left(worker, reason, time.monotonic())
            self._link.give_up(worker, reason)

    def restarts(self, worker: int) -> bool:
        """Return whether another process may join with the number of a worker that has left, or has."""
        return self._returns.is_awaited(worker, time.monotonic())

    def close(self) -> None:
        """Workers end by themselves when the flow does, or begin anew."""
        self._link = None
        meeting, self._meeting = self._meeting, None
        if meeting is not None:
            meeting.close()

    def _listens(self, endpoint: str) -> None:
        """The master listens at an endpoint; here a launcher knows of it without being told."""

    def _note(self, event: LinkEvent) -> None:
        worker, now_s = event.worker, time.monotonic()
        match event:
            case Received(message=Ready(node=node, free_bytes=free_bytes)):
                self._nodes[worker] = node
                self._free_bytes[worker] = free_bytes
                self._returns.joined(worker, now_s)
                logger.info("worker %d is ready", worker)
            case Received(message=Refused(reason=reason)):
                self._returns.refused(worker, reason)
                logger.warning("worker %d cannot begin: %s", worker, reason)
            case Left(reason=reason):
                self._returns.left(worker, reason, now_s)
            case _:
                pass

    def _await(self, link: HostLink, timeout_s: float) -> None:
        numbers = self._declaration.workers
        begun_s = said_s = time.monotonic()
        logger.info("waiting at %s for workers %s", link.endpoint, _listed(numbers))
        while missing := [worker for worker in numbers if worker not in self._nodes]:
            for event in link.receive(_SLICE_S):
                self._check(link, event)
            now_s = time.monotonic()
            absent = [worker for worker in missing if worker not in link.seats.held]
            text = (
                f"workers {_listed(missing)} of {_listed(numbers)} have not begun after {now_s - begun_s:.0f} s at "
                f"{link.endpoint}; of these {_listed(absent) if absent else 'none'} have not connected"
            )
            if now_s - begun_s > timeout_s:
                raise FlowError(
                    f"{text}; start them with softs-fast flow worker, or raise start_timeout_s or rejoin_timeout_s"
                )
            if now_s - said_s > _PROGRESS_S:
                said_s = now_s
                logger.warning("%s", text)

    def _check(self, link: HostLink, event: LinkEvent) -> None:
        """Check that a worker has begun well; before all have, none is awaited a second time."""
        worker = event.worker
        match event:
            case Received(message=Refused(reason=reason)):
                # It may have left by now.
                raise FlowError(f"worker {worker} of host {self._hosts[worker]} cannot begin: {reason}")
            case Left(reason=reason):
                raise FlowError(f"worker {worker} has left before all had begun: {reason}")
            case Joined(host=host):
                self._hosts[worker] = host
            case Received():
                pass


def _listed(numbers: list[int] | tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))
