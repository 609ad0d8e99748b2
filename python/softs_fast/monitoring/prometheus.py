"""Metrics of a market in Prometheus' text format, as text or over HTTP."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

from ..errors import ConfigError, EndpointInUse, PeerLost, SoftsError
from .snapshot import ClientView, Observer, Snapshot

__all__ = ["MetricsServer", "parse_address", "render_metrics"]

#: A connection without data for so long is closed, seconds.
_TIMEOUT_S = 2.0

_Labels = dict[str, str]
#: Name without the prefix, type, help, values.
_Family = tuple[str, str, str, Iterable[tuple[_Labels, float]]]


def render_metrics(snapshot: Snapshot | None) -> str:
    """Write a snapshot in Prometheus' text format, version 0.0.4; None stands for a broker that does not answer.

    Every name begins with ``softs_fast_``. Peers are labelled by the number that the broker gave them.
    """
    families = _families(snapshot) if snapshot is not None else ()
    up: _Family = ("up", "gauge", "Whether the broker answers.", [({}, int(snapshot is not None))])
    return "".join(line + "\n" for family in (up, *families) for line in _lines(family))


class MetricsServer:
    """Serves the metrics of one broker over HTTP, in a thread, from `start` to `stop`.

    Each request connects to the broker like a client and reads the counters in the segments of the clients on this
    machine; between requests nothing runs.

    Args:
        endpoint: the broker's frontend.
        address: where to listen, ``host:port``; port 0 takes a free one.
        allow_remote: lets the address be reachable from other machines. There is no authentication.

    Raises:
        ConfigError: the address or the endpoint is malformed, or the address is reachable from other machines
            without ``allow_remote=True``.

    Example:
        >>> from softs_fast import Broker
        >>> from softs_fast.monitoring.prometheus import MetricsServer
        >>> with Broker() as broker, MetricsServer(broker.bound_endpoints.frontend, "127.0.0.1:0") as metrics:
        ...     metrics.url.startswith("http://127.0.0.1:")
        True
    """

    def __init__(self, endpoint: str, address: str, *, allow_remote: bool = False) -> None:
        self.endpoint = endpoint
        self._address = parse_address(address, allow_remote)
        Observer(endpoint).close()
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listen and begin to serve; returns at once.

        Raises:
            EndpointInUse: something else listens there.
            PeerLost: the operating system refused the address.
        """
        if self._server is not None:
            return
        family, host, port = self._address
        try:
            self._server = _Server(family, host, port, self.endpoint)
        except OSError as error:
            text = f"cannot serve metrics at {host}:{port}: {error.strerror or error}"
            raise (EndpointInUse if error.errno == 98 else PeerLost)(text) from None
        self._thread = threading.Thread(target=self._server.serve_forever, name="softs-metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop listening after the current request. Idempotent."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
        self._server = self._thread = None

    @property
    def url(self) -> str:
        """URL of the metrics, with the port that was chosen."""
        host, port = self._address[1:]
        if self._server is not None:
            port = self._server.server_port
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"

    def __enter__(self) -> MetricsServer:
        self.start()
        return self

    def __exit__(self, *args: object) -> None:
        self.stop()


class _Server(HTTPServer):
    """An HTTP server for one request at a time: Prometheus asks every few seconds."""

    def __init__(self, family: socket.AddressFamily, host: str, port: int, endpoint: str) -> None:
        self.address_family = family
        self.endpoint = endpoint
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        # HTTPServer's own would look up the name of the host, which can take seconds.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a client that closed its connection."""


class _Handler(BaseHTTPRequestHandler):
    timeout = _TIMEOUT_S
    server: _Server

    def do_GET(self) -> None:
        if self.path.partition("?")[0] not in ("/", "/metrics"):
            self.send_error(404)
            return
        try:
            with Observer(self.server.endpoint) as observer:
                snapshot = observer.snapshot(_TIMEOUT_S)
        except SoftsError:
            snapshot = None
        body = render_metrics(snapshot).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a line per request has no use."""


def parse_address(address: str, allow_remote: bool) -> tuple[socket.AddressFamily, str, int]:
    """Split ``host:port`` and look the host up: family, numeric host, port.

    Raises:
        ConfigError: it is malformed, or reachable from other machines without `allow_remote`.
    """
    host, colon, digits = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (digits.isascii() and digits.isdigit() and int(digits) < 1 << 16):
        raise ConfigError(f"address for metrics: have {address!r}, need host:port")
    try:
        found = socket.getaddrinfo(host, int(digits), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"address for metrics {address!r}: {error.strerror}") from None
    family, numeric = found[0][0], str(found[0][4][0])
    if not allow_remote and not ipaddress.ip_address(numeric.partition("%")[0]).is_loopback:
        raise ConfigError(
            f"metrics at {address} would be reachable from other machines, without authentication; "
            "use 127.0.0.1, or allow_remote=True"
        )
    return family, numeric, int(digits)


def _families(snapshot: Snapshot) -> Iterator[_Family]:
    stats = snapshot.stats
    yield "pending_orders", "gauge", "Orders at the broker, queued or leased.", _one(stats.pending_orders)
    yield "free_suppliers", "gauge", "Suppliers that wait for orders.", _one(stats.available_suppliers)
    yield "clients", "gauge", "Clients that are connected.", _one(stats.connected_clients)
    yield "suppliers", "gauge", "Suppliers that are connected.", _one(stats.connected_suppliers)
    yield "wire_orders_total", "counter", "Orders completed through the broker.", _one(stats.total_completed)
    yield from _client_families(snapshot.clients or ())
    yield from _lane_families(snapshot.clients or ())
    products = [({"product": product.product_id}, product) for product in snapshot.products or ()]
    yield (
        "product_queued_orders",
        "gauge",
        "Orders of a product that no supplier has.",
        [(labels, product.queued) for labels, product in products],
    )
    yield (
        "product_suppliers",
        "gauge",
        "Suppliers that could make a product.",
        [(labels, product.suppliers) for labels, product in products],
    )
    suppliers = [({"supplier": str(s.peer_id), "name": s.name}, s) for s in snapshot.suppliers or ()]
    yield (
        "supplier_leases",
        "gauge",
        "Orders that a supplier has from the broker.",
        [(labels, s.leases) for labels, s in suppliers],
    )
    yield (
        "supplier_oldest_lease_seconds",
        "gauge",
        "Age of the oldest of them.",
        [(labels, s.busy_s) for labels, s in suppliers],
    )
    yield (
        "supplier_lanes",
        "gauge",
        "Lanes that a supplier serves.",
        [(labels, s.attached) for labels, s in suppliers],
    )


def _client_families(clients: tuple[ClientView, ...]) -> Iterator[_Family]:
    orders = [(_client_labels(c), c.orders) for c in clients]
    yield "client_wire_orders", "gauge", "Orders of a client at the broker.", orders
    counted = [(_client_labels(c), c.segment.counters) for c in clients if c.segment is not None]
    for name, kind, text, field, unit in _CLIENT_COUNTERS:
        yield name, kind, text, [(labels, getattr(counters, field) * unit) for labels, counters in counted]


_CLIENT_COUNTERS = (
    ("client_samples_total", "counter", "Samples delivered to a client.", "samples", 1),
    ("client_wait_seconds_total", "counter", "Time that a client waited for samples.", "waited_ns", 1e-9),
    ("client_waits_total", "counter", "How often a client waited for a sample.", "waits", 1),
    ("client_retries_total", "counter", "Orders that were placed again.", "retries", 1),
    ("client_failed_orders_total", "counter", "Orders that failed for good.", "failed", 1),
    ("client_lost_orders_total", "counter", "Orders that were lost with their supplier.", "lost", 1),
    ("client_ordered_slots", "gauge", "Slots on order.", "on_order", 1),
    ("client_finished_slots", "gauge", "Slots that are finished and not taken.", "finished", 1),
    ("client_held_slots", "gauge", "Slots held by the user.", "held", 1),
    ("client_start_time_seconds", "gauge", "When the client started, since 1970.", "started_ns", 1e-9),
)


def _lane_families(clients: tuple[ClientView, ...]) -> Iterator[_Family]:
    segments = [(_client_labels(c), c.segment) for c in clients if c.segment is not None]
    lanes = [
        (labels | {"lane": str(lane.index), "generation": str(lane.generation)}, lane)
        for labels, segment in segments
        for lane in segment.lanes
    ]
    positions = [(labels, lane.tail) for labels, lane in lanes]
    yield "lane_positions_total", "counter", "Positions of a lane that were used or skipped.", positions
    attached = [(labels, lane.attached.bit_count()) for labels, lane in lanes]
    yield "lane_suppliers", "gauge", "Suppliers that serve a lane.", attached
    makers = [
        (labels | {"index": str(s.index), "pid": str(s.pid)}, s.counters)
        for labels, segment in segments
        for s in segment.suppliers
    ]
    for name, text, field, unit in _SUPPLIER_COUNTERS:
        yield (
            name,
            "counter",
            text,
            [(labels, getattr(counters, field) * unit) for labels, counters in makers],
        )


_SUPPLIER_COUNTERS = (
    ("lane_supplier_samples_total", "Samples that a supplier made for a client.", "samples", 1),
    ("lane_supplier_failed_total", "Calls of its generator that failed.", "failed", 1),
    ("lane_supplier_busy_seconds_total", "Time in calls of its generator.", "busy_ns", 1e-9),
    ("lane_supplier_sleeps_total", "How often it blocked to wait for orders.", "sleeps", 1),
    ("lane_supplier_given_back_total", "Orders that it claimed and returned.", "given_back", 1),
)


def _client_labels(client: ClientView) -> _Labels:
    return {"client": str(client.peer_id), "address": client.address or ""}


def _one(value: float) -> list[tuple[_Labels, float]]:
    return [({}, value)]


def _lines(family: _Family) -> Iterator[str]:
    name, kind, text, values = family
    yield f"# HELP softs_fast_{name} {text}"
    yield f"# TYPE softs_fast_{name} {kind}"
    for labels, value in values:
        inner = ",".join(f'{key}="{_escaped(content)}"' for key, content in labels.items())
        yield f"softs_fast_{name}{f'{{{inner}}}' if inner else ''} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
