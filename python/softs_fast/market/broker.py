"""The broker: matches orders of clients to suppliers whose patterns match."""

import logging
import threading
import weakref

from .. import _core
from .protocol import BrokerStats, EndpointConfig

logger = logging.getLogger(__name__)


class Broker:
    """Routes orders from clients to suppliers, in a native thread that never needs the GIL.

    An order carries a concrete ``product_id``; a supplier registers patterns. An order goes to a supplier with a pattern that
    matches the whole product id, and stays with it until it answers or its connection ends: no time-out takes it away.

    Args:
        endpoints: where clients (frontend) and suppliers (backend) connect; default: softs' two paths under ``/tmp``.
        supplier_timeout: seconds after which a supplier on another host that vanished without a word counts as dead. A supplier
            that is merely silent is never dropped.
        client_timeout: the same for clients; the smaller of the two is used.
        max_queue_per_product: orders of one product that wait at the broker; more wait at their clients.
        max_order_attempts: an order that fails so often is given up.
        allow_remote: lets a TCP endpoint be reachable from other machines. There is no authentication: whoever
            reaches the ports can order samples and make suppliers write.

    Raises:
        ConfigError: a setting is out of range.
    """

    def __init__(
        self,
        endpoints: EndpointConfig | None = None,
        supplier_timeout: float = 60.0,
        client_timeout: float = 120.0,
        max_queue_per_product: int = 16,
        max_order_attempts: int = 5,
        *,
        allow_remote: bool = False,
    ) -> None:
        self.endpoints = EndpointConfig() if endpoints is None else endpoints
        self.supplier_timeout = supplier_timeout
        self.client_timeout = client_timeout
        self.max_queue_per_product = max_queue_per_product
        self.max_order_attempts = max_order_attempts
        self.allow_remote = allow_remote
        self._core: _core.Broker | None = None
        self._relay: threading.Thread | None = None
        self._stop_at_exit: weakref.finalize[[_core.Broker], Broker] | None = None

    def start(self) -> None:
        """Bind both endpoints and begin to serve; returns at once.

        Raises:
            EndpointInUse: a live broker already serves one of the endpoints.
            ConfigError: an endpoint is malformed, or reachable from other machines without ``allow_remote=True``.
            PeerLost: the operating system refused the address.
        """
        if self._core is not None:
            return
        _core.sweep()
        core = _core.Broker(
            self.endpoints.frontend,
            self.endpoints.backend,
            self.max_queue_per_product,
            self.max_order_attempts,
            min(self.supplier_timeout, self.client_timeout),
            self.allow_remote,
        )
        self._core = core
        self._relay = threading.Thread(target=_relay_log, args=(core,), name="softs-broker-log", daemon=True)
        self._relay.start()
        self._stop_at_exit = weakref.finalize(self, _core.Broker.stop, core)

    def stop(self) -> None:
        """Close both endpoints. Clients and suppliers of softs-fast wait for the next broker. Idempotent."""
        if self._stop_at_exit is None:
            return
        self._stop_at_exit()
        self._stop_at_exit = None
        if self._relay is not None:
            self._relay.join()
        self._core = None

    def wait(self) -> None:
        """Sleep until the broker has stopped; at once if it is not running. Ctrl-C ends the wait."""
        if self._relay is not None:
            self._relay.join()

    @property
    def bound_endpoints(self) -> EndpointConfig:
        """Where the broker really listens: wildcards such as ``tcp://127.0.0.1:*`` are resolved while it runs."""
        if self._core is None:
            return self.endpoints
        frontend, backend = self._core.endpoints
        return EndpointConfig(frontend=frontend, backend=backend)

    def get_stats(self) -> BrokerStats:
        """Counts of orders and peers; zeros while the broker is not running."""
        if self._core is None:
            return BrokerStats(0, 0, 0, 0, 0, [])
        return BrokerStats(**self._core.stats())

    def __enter__(self) -> "Broker":
        self.start()
        return self

    def __exit__(self, *args: object) -> None:
        self.stop()


def _relay_log(core: _core.Broker) -> None:
    """Passes the broker's records to Python's logging; sleeps in native code until there is one."""
    while (record := core.next_log()) is not None:
        logger.log(*record)
