"""The broker: routes orders of clients to suppliers with a matching pattern, and announces models to workers."""

from __future__ import annotations

import functools
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any, overload

from .. import _core
from ..errors import ConfigError
from ..process import join, raise_descriptor_limit
from ..repeated_log import relay_log
from .protocol import BrokerStats, ControlEndpoints, EndpointConfig

logger = logging.getLogger(__name__)


def _accepts_four_endpoints(init: Callable[..., None]) -> Callable[..., None]:
    """Let a constructor that takes an `EndpointConfig` first also take four endpoints by position.

    That is the form in the README of softs: frontend, backend, control, control_pub.
    """

    @functools.wraps(init)
    def accept(self: Any, /, *args: Any, **kwargs: Any) -> None:
        if args and isinstance(args[0], str):
            if len(args) > len(_FOUR):
                raise TypeError(f"at most {len(_FOUR)} endpoints, got {len(args)} arguments by position")
            by_place = dict(zip(_FOUR, args, strict=False))
            twice = by_place.keys() & kwargs.keys()
            if twice:
                raise TypeError(f"given both by position and by name: {', '.join(sorted(twice))}")
            args, kwargs = (), {**kwargs, **by_place}
        init(self, *args, **kwargs)

    return accept


class Broker:
    """Routes orders from clients to suppliers, in a native thread that never needs the GIL.

    An order has a concrete ``product_id``; a supplier registers patterns. An order goes to a supplier with a pattern
    that matches the whole product id, and stays with it until it answers or its connection ends: no time-out takes the
    order away.

    There are two forms. ``Broker(frontend_endpoint, backend_endpoint, control_endpoint, control_pub_endpoint)``, by
    position or by name, also serves the control channel, through which a `StudentClient` tells each `Worker` which
    model to run; so does ``Broker()``, on the default paths. ``Broker(EndpointConfig(...))`` serves clients and
    suppliers only, unless a control endpoint is named.

    Args:
        endpoints: Endpoints for clients (frontend) and suppliers (backend); default: softs' two paths under ``/tmp``.
        supplier_timeout: Seconds after which an idle supplier on another host counts as dead if TCP keep-alive probes are
            not answered. One that holds an order answers PING, however long its generator takes; after 1.2 s without an
            answer its host is cut off, and the order goes to another supplier.
        client_timeout: The same for clients; the smaller of the two is used.
        max_queue_per_product: Orders of softs clients for one product that wait at the broker; more are refused.
        max_order_attempts: Number of failures after which an order is given up.
        frontend_endpoint: Endpoint for clients, instead of `endpoints`.
        backend_endpoint: Endpoint for suppliers and workers, instead of `endpoints`.
        control_endpoint: Endpoint for students that set the model.
        control_pub_endpoint: Endpoint from which workers, and students that follow, receive the model.
        allow_remote: Whether a TCP endpoint may be reachable from other machines. There is no authentication then:
            any process that reaches the ports, also of another user of this machine, can order samples and make
            suppliers write.

    Raises:
        ConfigError: a setting is out of range, or endpoints were given in both forms.
    """

    @overload
    def __init__(
        self,
        endpoints: EndpointConfig | None = None,
        supplier_timeout: float = 60.0,
        client_timeout: float = 120.0,
        max_queue_per_product: int = 16,
        max_order_attempts: int = 5,
        *,
        control_endpoint: str | None = None,
        control_pub_endpoint: str | None = None,
        allow_remote: bool = False,
    ) -> None: ...

    @overload
    def __init__(
        self,
        frontend_endpoint: str | None = None,
        backend_endpoint: str | None = None,
        control_endpoint: str | None = None,
        control_pub_endpoint: str | None = None,
        *,
        supplier_timeout: float = 60.0,
        client_timeout: float = 120.0,
        max_queue_per_product: int = 16,
        max_order_attempts: int = 5,
        allow_remote: bool = False,
    ) -> None: ...

    @_accepts_four_endpoints
    def __init__(
        self,
        endpoints: EndpointConfig | None = None,
        supplier_timeout: float = 60.0,
        client_timeout: float = 120.0,
        max_queue_per_product: int = 16,
        max_order_attempts: int = 5,
        *,
        frontend_endpoint: str | None = None,
        backend_endpoint: str | None = None,
        control_endpoint: str | None = None,
        control_pub_endpoint: str | None = None,
        allow_remote: bool = False,
    ) -> None:
        if endpoints is not None and (frontend_endpoint is not None or backend_endpoint is not None):
            raise ConfigError(
                "endpoints were given twice; use either endpoints, or frontend_endpoint and backend_endpoint"
            )
        defaults = EndpointConfig() if endpoints is None else endpoints
        self.endpoints = EndpointConfig(
            frontend_endpoint or defaults.frontend, backend_endpoint or defaults.backend
        )
        is_controlled = endpoints is None or control_endpoint is not None or control_pub_endpoint is not None
        default_control = ControlEndpoints()
        self.control_endpoints = (
            ControlEndpoints(
                control_endpoint or default_control.control,
                control_pub_endpoint or default_control.control_pub,
            )
            if is_controlled
            else None
        )
        self.supplier_timeout = supplier_timeout
        self.client_timeout = client_timeout
        self.max_queue_per_product = max_queue_per_product
        self.max_order_attempts = max_order_attempts
        self.allow_remote = allow_remote
        self._core: _core.Broker | None = None
        self._control: _core.ControlServer | None = None
        self._relays: list[threading.Thread] = []
        self._stop_at_exit: weakref.finalize[..., Broker] | None = None

    def start(self) -> None:
        """Bind all endpoints and begin to serve; returns at once.

        Raises:
            EndpointInUse: a live broker already serves one of the endpoints.
            ConfigError: an endpoint is malformed, or reachable from other machines without ``allow_remote=True``.
            PeerLost: the operating system refused the address.
        """
        if self._core is not None:
            return
        _core.sweep()
        raise_descriptor_limit()
        peer_timeout_s = min(self.supplier_timeout, self.client_timeout)
        core = _core.Broker(
            self.endpoints.frontend,
            self.endpoints.backend,
            self.max_queue_per_product,
            self.max_order_attempts,
            peer_timeout_s,
            self.allow_remote,
        )
        control = None
        if self.control_endpoints is not None:
            try:
                control = _core.ControlServer(
                    self.control_endpoints.control,
                    self.control_endpoints.control_pub,
                    peer_timeout_s,
                    self.allow_remote,
                )
            except BaseException:
                core.stop()
                raise
        self._core, self._control = core, control
        self._relays = [relay_log(core.next_log, logger, "softs-broker-log")]
        if control is not None:
            self._relays.append(relay_log(control.next_log, logger, "softs-control-log"))
        self._stop_at_exit = weakref.finalize(self, _stop, core, control)

    def run(self) -> None:
        """Serve until another thread calls `stop`, or Ctrl-C.

        Raises:
            KeyboardInterrupt: Ctrl-C; the broker has stopped by then.
            EndpointInUse, ConfigError, PeerLost: as `start`.
        """
        self.start()
        try:
            self.wait()
        finally:
            self.stop()

    def stop(self) -> None:
        """Close all endpoints. Clients, suppliers, students and workers wait for the next broker. Idempotent."""
        if self._stop_at_exit is None:
            return
        self._stop_at_exit()
        self._stop_at_exit = None
        for relay in self._relays:
            relay.join()
        self._core = self._control = None

    def wait(self) -> None:
        """Block until the broker has stopped; return at once if it is not running. Ctrl-C ends the wait."""
        if self._relays:
            join(self._relays[0])

    @property
    def bound_endpoints(self) -> EndpointConfig:
        """Endpoints on which the broker listens; wildcards such as ``tcp://127.0.0.1:*`` are resolved while it runs."""
        if self._core is None:
            return self.endpoints
        frontend, backend = self._core.endpoints
        return EndpointConfig(frontend=frontend, backend=backend)

    @property
    def bound_control_endpoints(self) -> ControlEndpoints | None:
        """Endpoints of the control channel; None if it is not served."""
        if self._control is None:
            return self.control_endpoints
        return ControlEndpoints(*self._control.endpoints)

    @property
    def stats(self) -> BrokerStats:
        """Counts of orders and peers, and the newest model; zeros while the broker is not running."""
        if self._core is None:
            return BrokerStats(0, 0, 0, 0, 0, [])
        stats = BrokerStats(**self._core.stats())
        if self._control is not None:
            control = self._control.stats()
            stats.generation = control["generation"]
            stats.model_id = control["model_id"]
            stats.students = control["students"]
            stats.waiting_workers = control["subscribers"] if control["generation"] == 0 else 0
        return stats

    def get_stats(self) -> BrokerStats:
        """As `stats`."""
        return self.stats

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(self, *args: object) -> None:
        self.stop()


def _stop(core: _core.Broker, control: _core.ControlServer | None) -> None:
    if control is not None:
        control.stop()
    core.stop()


#: In the order in which the README of softs gives them.
_FOUR = ("frontend_endpoint", "backend_endpoint", "control_endpoint", "control_pub_endpoint")
