"""Snapshots of markets that never were."""

from __future__ import annotations

from softs_fast.market.protocol import BrokerStats
from softs_fast.monitoring.snapshot import (
    ClientCounters,
    ClientView,
    LaneSupplierView,
    LaneView,
    ProductView,
    SegmentView,
    Snapshot,
    SupplierCounters,
    SupplierView,
)


def counters(**known: int) -> ClientCounters:
    """A client's counters; those not named are 0."""
    names = [
        "samples",
        "waited_ns",
        "waits",
        "held",
        "retries",
        "failed",
        "lost",
        "finished",
        "on_order",
        "started_ns",
    ]
    return ClientCounters(**{name: known.pop(name, 0) for name in names}, **known)


def maker(index: int = 0, pid: int = 77, **known: int) -> LaneSupplierView:
    """A supplier in a segment; counters not named are 0."""
    names = ["samples", "failed", "busy_ns", "sleeps", "given_back"]
    numbers = SupplierCounters(**{name: known.pop(name, 0) for name in names}, **known)
    return LaneSupplierView(index, pid, numbers)


def segment(
    client: ClientCounters, *makers: LaneSupplierView, lanes: tuple[LaneView, ...] = (), segment_id: int = 1
) -> SegmentView:
    """A segment."""
    return SegmentView(segment_id, client, makers, lanes)


def client(seen: SegmentView | None, peer_id: int = 1, address: str | None = "sl_1") -> ClientView:
    """A client with one product in lane 0."""
    return ClientView(peer_id, address, 1, 0, 0, (("p1", 0, 1),), seen)


def supplier(leases: int = 0, name: str = "host:77", peer_id: int = 1) -> SupplierView:
    """A supplier."""
    return SupplierView(peer_id, name, ("p.*",), "native", leases, 0.5 if leases else 0.0, 1)


def snapshot(
    at_s: float,
    *clients: ClientView,
    suppliers: tuple[SupplierView, ...] = (),
    completed: int = 0,
) -> Snapshot:
    """A market."""
    stats = BrokerStats(0, 0, len(clients), len(suppliers), completed, [])
    return Snapshot("ipc://x", at_s, stats, clients, suppliers, (ProductView("p1", 3, 1, 2),))
