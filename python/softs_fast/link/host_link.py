"""The link of this host to others, as a program sees it."""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Sequence

from .. import _core
from ..errors import ConfigError
from ..market import EndpointConfig, control_beside, default_endpoint
from ..process import Closing, check_process, join, raise_descriptor_limit
from ..repeated_log import relay_log
from ..trust import TlsFiles
from .addresses import endpoint_of, place_of

__all__ = ["HostLink"]

logger = logging.getLogger(__name__)

#: Pause between two looks at a link that drains, seconds.
_LOOK_S = 0.02
#: Connections of one session.
_MOST_CONNECTIONS = 4


class HostLink(Closing):
    """Joins the broker of this host with those of other hosts, in a native thread that never needs the GIL.

    Clients of this host get samples of suppliers on the other hosts, and the other way round, with unchanged programs.
    A `StudentClient` of one of them sets the model of `Worker` on all that are joined with it. Towards the broker a link is
    one more supplier and one more client. Of each pair of hosts one listens, either may connect. It is tried again until
    the other link is there, as the broker is. A link never passes on what it has from another link, so each pair of hosts
    that exchanges samples is joined itself.

        files = TlsFiles(token_file=Path("job.token"))
        with sf.HostLink(listen="0.0.0.0", credentials=files):            # on the teachers' host
            ...
        with sf.HostLink(connect="softs://teachers/job?token_file=job.token"):    # on the student's host
            ...

    It serves from construction to `close`. A fork has neither the thread nor the connections: all but `close` raises
    ForkedError there.

    Args:
        endpoints: Endpoints of this host's broker; default: those that SOFTS_FAST_FRONTEND and SOFTS_FAST_BACKEND name,
            or softs' paths.
        listen: Place to listen at: HOST, HOST:PORT, or ``softs://HOST[:PORT]/JOB?token_file=FILE``. The port is 4700 unless
            it is given, 0 takes a free one.
        connect: Places of the links of other hosts.
        control_endpoint: Control endpoint of this host's broker. Default: that of the default broker, if `endpoints` are
            its own; else none, and no models go to and from other hosts.
        credentials: Token file of the job, or PEM files, as `softs_fast.trust.TlsFiles`. The other hosts have the same
            token, or certificates of the same CA. Files are read once, now. None, and no token file in a place: a plain
            link, on loopback only.
        connections: Connections with each other host, 1 to 4; of two ends the one that wants more has its way. Default: 1
            where the kernel allows congestion control by BBR, else 4, as each lost packet slows one connection down.

    Attributes:
        address: Address at which it listens, with the real port; None if it does not.

    Raises:
        ConfigError: Neither listen nor connect; `connections` is not 1 to 4; a place is malformed, or has several hosts;
            places and credentials have different token files; a plain link that other machines could reach; or a file cannot be used.
        EndpointInUse: A process listens there already.
        PeerLost: The operating system refused the address.
    """

    def __init__(
        self,
        endpoints: EndpointConfig | None = None,
        *,
        listen: str | None = None,
        connect: Sequence[str] = (),
        control_endpoint: str | None = None,
        credentials: TlsFiles | None = None,
        connections: int | None = None,
    ) -> None:
        # One address is a sequence of texts, too.
        connect = [connect] if isinstance(connect, str) else connect
        if listen is None and not connect:
            raise ConfigError(
                "a host link joins hosts: give an address to listen at, or those of other hosts to connect to"
            )
        if connections is not None and connections not in range(1, _MOST_CONNECTIONS + 1):
            raise ConfigError(f"connections is 1 to {_MOST_CONNECTIONS}, not {connections!r}")
        if endpoints is None:
            endpoints = EndpointConfig(default_endpoint("frontend"), default_endpoint("backend"))
        places = [place_of(one) for one in (listen, *connect) if one is not None]
        files = credentials or TlsFiles()
        # The variable is for where no place names a file.
        for place in sorted(places, key=lambda place: place.token_file is None):
            files = place.credentials_or(files)
        der = files.der()
        others = [endpoint_of(place, is_plain=der is None) for place in places]
        own = None if listen is None else others.pop(0)
        _core.sweep()
        raise_descriptor_limit()
        control = control_endpoint or control_beside(endpoints.frontend)
        self._core = _core.HostLink(
            own, others, endpoints.frontend, endpoints.backend, control, der, connections
        )
        self._pid = os.getpid()
        endpoint = self._core.endpoint
        self.address = None if endpoint is None else endpoint.removeprefix("tcp://")
        self._relay = relay_log(self._core.next_log, logger, "softs-link-log")
        # A daemon thread must not be inside native code when the interpreter ends.
        self._stop_at_exit = weakref.finalize(self, self._core.stop)

    @property
    def n_hosts(self) -> int:
        """Number of hosts that are connected now.

        Raises:
            ForkedError: This is a fork of the process that made the link.
        """
        return self._core.n_sessions

    def drain(self, timeout_s: float = 10.0) -> None:
        """Give back orders of other hosts that no supplier has begun with, and take none any more, from either side.

        Samples that are being made are waited for, and sent.

        Args:
            timeout_s: Seconds to wait for them.

        Raises:
            ForkedError: This is a fork of the process that made the link.
        """
        self._core.drain()
        end_s = time.monotonic() + timeout_s
        while self._core.owes and time.monotonic() < end_s:
            time.sleep(_LOOK_S)

    def wait(self) -> None:
        """Block until the link is closed, or its thread has ended by itself. Ctrl-C ends the wait.

        Raises:
            ForkedError: This is a fork of the process that made the link.
        """
        check_process(self._pid, "this host link")
        join(self._relay)

    def close(self) -> None:
        """End all connections and the thread; orders of both sides return to their lanes. Idempotent.

        In a fork it does nothing.
        """
        self._stop_at_exit()
        self._relay.join()
