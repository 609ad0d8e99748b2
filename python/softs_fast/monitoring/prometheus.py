"""Metrics of a market in Prometheus' text format, as text, over HTTP, or among those of `prometheus_client`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..errors import ConfigError, SoftsError
from .families import Family, Labels, metrics_text, unlabelled
from .snapshot import ClientView, Observer, Snapshot
from .text_server import TextServer

__all__ = ["Collector", "MetricsServer", "render_market", "render_metrics"]

#: A broker that does not answer for so long is not up, seconds.
_TIMEOUT_S = 2.0


def render_metrics(snapshot: Snapshot | None) -> str:
    """Write a snapshot in Prometheus' text format, version 0.0.4; None stands for a broker that does not answer.

    Every name begins with ``softs_fast_``. Peers are labelled by the number that the broker gave them.
    """
    families = _families(snapshot) if snapshot is not None else ()
    return metrics_text(
        [("up", "gauge", "Whether the broker answers.", unlabelled(int(snapshot is not None))), *families]
    )


class MetricsServer(TextServer):
    """Serves the metrics of one broker over HTTP, in a thread, from `start` to `close`.

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
        super().__init__(lambda: render_market(endpoint), address, allow_remote=allow_remote)
        Observer(endpoint).close()


class Collector:
    """Gives metrics of this package to a registry of `prometheus_client`, where a process has one for other metrics.

    They are read at each scrape.

    Args:
        render: returns metrics as text, as `render_market` and the other functions of this name do.

    Example:
        >>> from softs_fast.monitoring import Collector, render_market
        >>> def add_to(registry, endpoint):
        ...     registry.register(Collector(lambda: render_market(endpoint)))
    """

    def __init__(self, render: Callable[[], str]) -> None:
        self._render = render

    def describe(self) -> list[Any]:
        """Return nothing: a registry asks `collect` when it is registered if there is no such method."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield the families of `prometheus_client`; a registry calls it."""
        from prometheus_client.parser import text_string_to_metric_families

        yield from text_string_to_metric_families(self._render())


def render_market(endpoint: str) -> str:
    """Write the present metrics of a broker in Prometheus' text format; `up` is 0 if it does not answer.

    Args:
        endpoint: the broker's frontend.

    Raises:
        ConfigError: the endpoint is malformed.
    """
    try:
        with Observer(endpoint) as observer:
            return render_metrics(observer.snapshot(_TIMEOUT_S))
    except ConfigError:
        raise
    except SoftsError:
        return render_metrics(None)


def _families(snapshot: Snapshot) -> Iterator[Family]:
    stats = snapshot.stats
    yield (
        "pending_orders",
        "gauge",
        "Orders at the broker, queued or leased.",
        unlabelled(stats.pending_orders),
    )
    yield "free_suppliers", "gauge", "Suppliers that wait for orders.", unlabelled(stats.available_suppliers)
    yield "clients", "gauge", "Clients that are connected.", unlabelled(stats.connected_clients)
    yield "suppliers", "gauge", "Suppliers that are connected.", unlabelled(stats.connected_suppliers)
    yield (
        "wire_orders_total",
        "counter",
        "Orders completed through the broker.",
        unlabelled(stats.total_completed),
    )
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


def _client_families(clients: tuple[ClientView, ...]) -> Iterator[Family]:
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


def _lane_families(clients: tuple[ClientView, ...]) -> Iterator[Family]:
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


def _client_labels(client: ClientView) -> Labels:
    return {"client": str(client.peer_id), "address": client.address or ""}
