"""Metrics of a market in Prometheus' text format, as text, over HTTP, or among those of `prometheus_client`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..errors import ConfigError, SoftsError
from .families import Family, Field, families_of_fields, metrics_text, unlabelled
from .snapshot import Observer, Snapshot
from .text_server import TextServer

__all__ = ["Collector", "MetricsServer", "render_market", "render_metrics"]

#: A broker that does not answer for so long is not up, seconds.
_TIMEOUT_S = 2.0

_BROKER: tuple[Field, ...] = (
    ("pending_orders", "Orders at the broker, queued or leased.", "pending_orders", 1),
    ("free_suppliers", "Suppliers that wait for orders.", "available_suppliers", 1),
    ("clients", "Clients that are connected.", "connected_clients", 1),
    ("suppliers", "Suppliers that are connected.", "connected_suppliers", 1),
    ("wire_orders_total", "Orders completed through the broker.", "total_completed", 1),
)
_CLIENTS: tuple[Field, ...] = (("client_wire_orders", "Orders of a client at the broker.", "orders", 1),)
_CLIENT_COUNTERS: tuple[Field, ...] = (
    ("client_samples_total", "Samples delivered to a client.", "samples", 1),
    ("client_wait_seconds_total", "Time that a client waited for samples.", "waited_ns", 1e-9),
    ("client_waits_total", "How often a client waited for a sample.", "waits", 1),
    ("client_retries_total", "Orders that were placed again.", "retries", 1),
    ("client_failed_orders_total", "Orders that failed for good.", "failed", 1),
    ("client_lost_orders_total", "Orders that were lost with their supplier.", "lost", 1),
    ("client_ordered_slots", "Slots on order.", "on_order", 1),
    ("client_finished_slots", "Slots that are finished and not taken.", "finished", 1),
    ("client_held_slots", "Slots held by the user.", "held", 1),
    ("client_start_time_seconds", "When the client started, since 1970.", "started_ns", 1e-9),
)
_LANES: tuple[Field, ...] = (
    ("lane_positions_total", "Positions of a lane that were used or skipped.", "tail", 1),
)
_LANE_SUPPLIERS: tuple[Field, ...] = (
    ("lane_supplier_samples_total", "Samples that a supplier made for a client.", "samples", 1),
    ("lane_supplier_failed_total", "Calls of its generator that failed.", "failed", 1),
    ("lane_supplier_busy_seconds_total", "Time in calls of its generator.", "busy_ns", 1e-9),
    ("lane_supplier_sleeps_total", "How often it blocked to wait for orders.", "sleeps", 1),
    ("lane_supplier_given_back_total", "Orders that it claimed and returned.", "given_back", 1),
)
_PRODUCTS: tuple[Field, ...] = (
    ("product_queued_orders", "Orders of a product that no supplier has.", "queued", 1),
    ("product_suppliers", "Suppliers that could make a product.", "suppliers", 1),
)
_SUPPLIERS: tuple[Field, ...] = (
    ("supplier_leases", "Orders that a supplier has from the broker.", "leases", 1),
    ("supplier_oldest_lease_seconds", "Age of the oldest of them.", "busy_s", 1),
    ("supplier_lanes", "Lanes that a supplier serves.", "attached", 1),
)


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
    clients = [({"client": str(c.peer_id), "address": c.address or ""}, c) for c in snapshot.clients or ()]
    segments = [(labels, client.segment) for labels, client in clients if client.segment is not None]
    lanes = [
        (labels | {"lane": str(lane.index), "generation": str(lane.generation)}, lane)
        for labels, segment in segments
        for lane in segment.lanes
    ]
    makers = [
        (labels | {"index": str(maker.index), "pid": str(maker.pid)}, maker.counters)
        for labels, segment in segments
        for maker in segment.suppliers
    ]
    products = [({"product": product.product_id}, product) for product in snapshot.products or ()]
    suppliers = [({"supplier": str(s.peer_id), "name": s.name}, s) for s in snapshot.suppliers or ()]
    yield from families_of_fields(_BROKER, [({}, snapshot.stats)])
    yield from families_of_fields(_CLIENTS, clients)
    yield from families_of_fields(_CLIENT_COUNTERS, [(labels, one.counters) for labels, one in segments])
    yield from families_of_fields(_LANES, lanes)
    attached = [(labels, lane.attached.bit_count()) for labels, lane in lanes]
    yield "lane_suppliers", "gauge", "Suppliers that serve a lane.", attached
    yield from families_of_fields(_LANE_SUPPLIERS, makers)
    yield from families_of_fields(_PRODUCTS, products)
    yield from families_of_fields(_SUPPLIERS, suppliers)
