"""A worker of a flow that a launcher has started, on any host: it connects to the master, and serves until the end."""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from ... import _core
from ...errors import ConfigError, FlowError, PeerLost
from ...trust import CONNECT_S, Address, Der, Outage, Place, TlsFiles, UnknownHostError, bracketed
from ..declare.declaration import Declaration
from ..link.messages import Declared, End, Failure, Ready, Refused
from ..link.seats import new_seat
from ..link.stream import StreamLimits, join
from ..store import DataManager, HostLinks
from .groups import Groups
from .loop import WorkerLoop
from .stack import answers_stack
from .watched_link import WatchedLink
from .worker import check_same

__all__ = ["MasterLost", "read_credentials", "run_worker", "serve_worker"]

logger = logging.getLogger(__name__)

#: Pauses between two attempts to connect: the first, and the longest.
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.1, 2.0
#: How long a step may take to return when there is no master any more, seconds.
_GRACE_S = 3.0


class MasterLost(PeerLost):
    """The master of a worker has gone, or has given it up; the flow may go on with another process."""


def run_worker(
    endpoint: str,
    worker: int,
    build: Callable[[], Declaration],
    token_file: Path | None = None,
    *,
    wait_s: float = 300.0,
    lost_after_s: float = 30.0,
    stuck: Callable[[MasterLost | None], None] | None = None,
) -> None:
    """Be a worker of a flow until the flow ends.

    Args:
        endpoint: Place of the master, `tcp://HOST:PORT` or `softs://HOST:PORT[,HOST2:PORT]/JOB?token_file=FILE`. Each
            attempt to connect takes the next one of several hosts.
        worker: Number of this worker.
        build: Function that returns the declaration of the flow.
        token_file: File with the token of the master, mode 0600; None for that of the place, else of
            SOFTS_FAST_TOKEN_FILE.
        wait_s: Seconds that the master may take until it listens.
        lost_after_s: Seconds after which a process of which rows are read, and that sends no bytes, counts as lost.
        stuck: Function called in another thread, if a step does not return within 3 s after the master was lost, or
            the flow has ended (None): it ends this process. Without it, what runs is awaited.

    Raises:
        ConfigError: this process has built another flow than the master, has no role in it, or the endpoint or the token
            file is missing or cannot be used.
        HelloError: the master refused this worker.
        PeerLost: no master listens there.
        MasterLost: the master has gone without a word, or has given this worker up; the worker may begin anew.
        Exception: what the function of the flow, or `setup` of a role, raised.
    """
    serve_worker(
        endpoint,
        worker,
        build,
        read_credentials(Place.parse(endpoint, "master", scheme="tcp://"), token_file),
        wait_s=wait_s,
        lost_after_s=lost_after_s,
        stuck=stuck,
    )


def serve_worker(
    endpoint: str,
    worker: int,
    build: Callable[[], Declaration],
    credentials: Der,
    *,
    wait_s: float = 300.0,
    lost_after_s: float = 30.0,
    stuck: Callable[[MasterLost | None], None] | None = None,
) -> None:
    """Do what `run_worker` does, with credentials instead of the token file."""
    # A master listens where it is told, so no port is meant where none is named.
    place = Place.parse(endpoint, "master", scheme="tcp://")
    declaration = build()
    there, connection = _connected(place, credentials, worker, wait_s)

    def lost() -> MasterLost:
        return MasterLost(f"worker {worker} has lost its master: {link.lost}")

    def is_stuck() -> None:
        if stuck is not None:
            stuck(None if link.has_ended else lost())

    link = WatchedLink(connection, _GRACE_S, is_stuck)
    try:
        own = there.own_side()
        with answers_stack(link), contextlib.ExitStack() as stack:
            try:
                if worker not in declaration.workers:
                    numbers = ", ".join(map(str, declaration.workers))
                    raise ConfigError(f"worker {worker} has no role in this flow; there are {numbers}")
                declared = _declared(link)
                check_same(worker, declared.lines, declaration.lines())
                links = HostLinks(
                    credentials,
                    listen=f"tcp://{_serves_at(there, own, declared.host)}:0",
                    # On the host of the master others know this process by the master's name.
                    reachable="*" if there.is_loopback else own,
                    master=there.host,
                    lost_after_s=lost_after_s,
                )
                store = stack.enter_context(DataManager(worker, links=links))
                groups = None
                if declared.meeting_port:
                    meeting = (there.numeric[0], declared.meeting_port)
                    groups = stack.enter_context(Groups(declaration, worker, meeting, credentials))
                loop = WorkerLoop(worker, declaration, link, store, groups)
                loop.setup()
            except BaseException as error:
                link.check()
                try:
                    link.send(Refused(Failure.of(error).text))
                except PeerLost:
                    raise lost() from error
                raise
            with contextlib.suppress(PeerLost):  # `run` returns then
                link.send(Ready(store.node, store.free_bytes))
            logger.info("worker %d has begun", worker)
            loop.run()
            if not link.has_ended:
                raise lost()
    finally:
        link.close()


def read_credentials(place: Place, token_file: Path | None) -> Der:
    """Return what a process of a flow shows the others, from a token file.

    It is the file given, else that of the place, else that of SOFTS_FAST_TOKEN_FILE.

    Raises:
        ConfigError: there is none, it cannot be used, or the place has another one.
    """
    found = place.credentials_or(TlsFiles(token_file=token_file)).der()
    if found is None:
        raise ConfigError(
            "missing token file of the flow; give --token-file, token_file=, softs:// with ?token_file=, or "
            "SOFTS_FAST_TOKEN_FILE"
        )
    return found


def _serves_at(there: Address, own: str, host: str) -> str:
    """Return where a worker serves its rows: no more can reach it than have to.

    Args:
        there: Address at which this worker has reached its master.
        own: Own address of this worker on the way there.
        host: Host at which the master listens. A worker that has come by loopback is beside it, so others come there,
            too.
    """
    return host if there.is_loopback else bracketed(own)


def _connected(
    place: Place, credentials: Der, worker: int, wait_s: float
) -> tuple[Address, _core.FlowClient]:
    """Connect as soon as the master listens: a launcher may start it after its workers."""
    outage, pause_s = Outage(place.addresses, time.monotonic(), wait_s), _FIRST_PAUSE_S
    absent: tuple[type[Exception], ...] = (PeerLost,)
    limits = StreamLimits()
    if len(place.addresses) > 1:
        # Neither an unknown name nor silence must keep the worker from the other hosts.
        absent, limits = (PeerLost, UnknownHostError), StreamLimits(handshake_s=CONNECT_S)
    while True:
        try:
            there = Address.parse(f"tcp://{outage.host}", "master", "tcp://")
            seat = new_seat(worker, secrets.randbits(64))
            return there, join(f"tcp://{there.target()}", credentials, seat, limits=limits)
        except absent as error:
            if outage.failed(time.monotonic() + pause_s, str(error)).is_last:
                raise PeerLost(
                    f"worker {worker} has waited {wait_s:g} s for the master: {outage.cause}"
                ) from error
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LAST_PAUSE_S)


def _declared(link: WatchedLink) -> Declared:
    """Wait for the flow of the master; it is sent as soon as a worker has joined, and no other one has its number."""
    while True:
        for message in link.receive(None):
            if isinstance(message, Declared):
                return message
            if isinstance(message, End):
                raise FlowError("the flow has ended before this worker had begun")
