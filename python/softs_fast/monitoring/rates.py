"""Rates between two snapshots of a market. Pure: snapshots in, numbers out."""

from __future__ import annotations

from dataclasses import dataclass

from .snapshot import ClientView, SegmentView, Snapshot

__all__ = ["ClientRates", "LaneRate", "Rates", "SupplierRates", "rates_between"]


@dataclass(frozen=True)
class ClientRates:
    """One client with counters on this machine. Shares are between 0 and 1."""

    samples_s: float
    #: Share of the time in which it waited for samples.
    waited: float
    #: Share in which it waited while its suppliers were busy.
    producer_bound: float
    #: Share in which its suppliers idled because slots were finished or held.
    consumer_bound: float


@dataclass(frozen=True)
class SupplierRates:
    """One process that supplies clients on this machine, over all their segments."""

    samples_s: float
    #: Share of the time in calls of its generator.
    busy: float
    sleeps_s: float
    failed: int
    given_back: int


@dataclass(frozen=True)
class LaneRate:
    """One lane of one client."""

    #: Number of the client.
    peer_id: int
    index: int
    product_id: str | None
    orders_s: float | None
    n_suppliers: int


@dataclass(frozen=True)
class Rates:
    """Rates of a market between two snapshots."""

    #: Samples delivered to the clients on this machine; None if no counters could be compared.
    samples_s: float | None
    #: Orders completed through the broker.
    wire_orders_s: float | None
    #: By the client's number; only clients with counters that could be compared.
    clients: dict[int, ClientRates]
    #: By process number.
    suppliers: dict[int, SupplierRates]
    lanes: tuple[LaneRate, ...]


def rates_between(before: Snapshot | None, after: Snapshot) -> Rates:
    """Compare two snapshots; without an earlier one there are no rates, only lanes."""
    seconds = after.at_s - before.at_s if before is not None else 0.0
    known: dict[int, SegmentView | None] = {}
    wire = None
    if before is not None and seconds > 0:
        known = {client.peer_id: client.segment for client in before.clients or ()}
        wire = max(after.stats.total_completed - before.stats.total_completed, 0) / seconds
    pairs: list[tuple[ClientView, SegmentView, SegmentView]] = []
    lanes: list[LaneRate] = []
    for client in after.clients or ():
        old, new = known.get(client.peer_id), client.segment
        if new is None:
            continue
        if old is not None and old.segment_id != new.segment_id:
            old = None
        if old is not None:
            pairs.append((client, old, new))
        lanes += _lanes(client, old, new, seconds)
    share = _share_with_leases(after)
    clients = {client.peer_id: _client(old, new, seconds, share) for client, old, new in pairs}
    return Rates(
        samples_s=sum(rate.samples_s for rate in clients.values()) if clients else None,
        wire_orders_s=wire,
        clients=clients,
        suppliers=_suppliers([(old, new) for _, old, new in pairs], seconds),
        lanes=tuple(lanes),
    )


def _client(old: SegmentView, new: SegmentView, seconds: float, share_with_leases: float) -> ClientRates:
    was, now = old.counters, new.counters
    waited = _share((now.waited_ns - was.waited_ns) / 1e9 / seconds)
    busy = _busy_shares(old, new, seconds)
    # If all orders go by wire, the leases of the present snapshot stand for the share of time.
    mean = sum(busy.values()) / len(busy) if busy else share_with_leases
    ahead = now.finished + now.held > 0
    return ClientRates(
        samples_s=max(now.samples - was.samples, 0) / seconds,
        waited=waited,
        producer_bound=waited * mean,
        consumer_bound=(1 - waited) * (1 - mean) if ahead else 0.0,
    )


def _busy_shares(old: SegmentView, new: SegmentView, seconds: float) -> dict[int, float]:
    """Return the share of the time that each attached supplier spent in its generator, by its index."""
    before = {supplier.index: supplier for supplier in old.suppliers}
    was_waiting = new.counters.waited_ns > old.counters.waited_ns
    orders_waited = was_waiting and old.counters.on_order > 0 and new.counters.on_order > 0
    shares = {}
    for supplier in new.suppliers:
        was, now = before.get(supplier.index), supplier.counters
        if was is None or was.pid != supplier.pid:
            continue
        if orders_waited and (was.counters.samples, was.counters.sleeps) == (now.samples, now.sleeps):
            # It made no sample and did not block although there were orders and their client waited: it is in a long
            # call, which is counted at its end.
            shares[supplier.index] = 1.0
        else:
            shares[supplier.index] = _share((now.busy_ns - was.counters.busy_ns) / 1e9 / seconds)
    return shares


def _suppliers(pairs: list[tuple[SegmentView, SegmentView]], seconds: float) -> dict[int, SupplierRates]:
    found: dict[int, SupplierRates] = {}
    for old, new in pairs:
        before = {(supplier.index, supplier.pid): supplier.counters for supplier in old.suppliers}
        shares = _busy_shares(old, new, seconds)
        for supplier in new.suppliers:
            was, now = before.get((supplier.index, supplier.pid)), supplier.counters
            if was is None:
                continue
            so_far = found.get(supplier.pid, SupplierRates(0.0, 0.0, 0.0, 0, 0))
            found[supplier.pid] = SupplierRates(
                samples_s=so_far.samples_s + max(now.samples - was.samples, 0) / seconds,
                busy=_share(so_far.busy + shares[supplier.index]),
                sleeps_s=so_far.sleeps_s + max(now.sleeps - was.sleeps, 0) / seconds,
                failed=so_far.failed + now.failed,
                given_back=so_far.given_back + now.given_back,
            )
    return found


def _lanes(client: ClientView, old: SegmentView | None, new: SegmentView, seconds: float) -> list[LaneRate]:
    before = {(lane.index, lane.generation): lane.tail for lane in old.lanes} if old is not None else {}
    products = {(lane, generation): product for product, lane, generation in client.products}
    rates = []
    for lane in new.lanes:
        key = (lane.index, lane.generation)
        tail = before.get(key)
        orders_s = max(lane.tail - tail, 0) / seconds if tail is not None else None
        product = products.get(key)
        rates.append(LaneRate(client.peer_id, lane.index, product, orders_s, lane.attached.bit_count()))
    return rates


def _share_with_leases(snapshot: Snapshot) -> float:
    suppliers = snapshot.suppliers
    if not suppliers:
        # No supplier could deliver: a client that waits lacks suppliers.
        return 1.0
    return sum(supplier.leases > 0 for supplier in suppliers) / len(suppliers)


def _share(part: float) -> float:
    """Clamp a share to 0 to 1: counters of peers may be wrong, and a call may end long after it began."""
    return min(max(part, 0.0), 1.0)
