"""One screen of ``softs-fast top``. Pure: snapshots and rates in, lines out."""

from __future__ import annotations

from collections.abc import Sequence

from ..monitoring import ClientView, LaneRate, Rates, Snapshot, SupplierRates, SupplierView
from .table import Table, count, cut, fit, plain, share, si, stack

__all__ = ["flow_screen", "outage", "screen"]

#: Columns for a text of a peer.
_TEXT_WIDTH = 24

_CLIENT_HEAD = (
    "CLIENT MEDIUM PRODUCTS SAMPLES/S WAITED PRODUCER CONSUMER ORDERED FINISHED HELD RETRIES FAILED LOST"
)
_SUPPLIER_HEAD = "SUPPLIER NAME PATTERNS SAMPLES/S BUSY LANES LEASES OLDEST SLEEPS/S FAILED GIVEN-BACK"
_LANE_HEAD = "LANE CLIENT PRODUCT ORDERS/S SUPPLIERS"


def screen(
    snapshot: Snapshot,
    rates: Rates,
    clock: str,
    width: int | None = None,
    height: int | None = None,
    flows: Sequence[Table] = (),
) -> list[str]:
    """Lay out a market.

    Args:
        snapshot: its state.
        rates: rates since the snapshot before.
        clock: the time, as text.
        width: columns of a line at most; None for any number.
        height: lines at most; None for any number.
        flows: tables below those of the market.
    """
    stats = snapshot.stats
    top = [
        f"softs-fast top  {plain(snapshot.endpoint)}  {clock}",
        f"{count(stats.connected_clients, 'client')}, {count(stats.connected_suppliers, 'supplier')}, "
        f"{count(len(rates.lanes), 'lane')}"
        f"{_sums(snapshot)}",
        f"samples  {_rate(rates.samples_s)}/s to clients on this machine, {_rate(rates.wire_orders_s)}/s through the broker; "
        f"{count(stats.pending_orders, 'order')} there now",
    ]
    if snapshot.clients is None:
        top.append("This broker does not list its peers.")
    tables = [
        (_CLIENT_HEAD, [_client_row(c, rates) for c in snapshot.clients or ()], 3),
        (_SUPPLIER_HEAD, _supplier_rows(snapshot.suppliers or (), rates), 3),
        (_LANE_HEAD, [_lane_row(lane) for lane in rates.lanes], 3),
        *flows,
    ]
    room = None if height is None else height - len(top)
    lines = top + stack([table for table in tables if table[1]], room)
    return fit(lines, width, height)


def flow_screen(
    title: str, flows: Sequence[Table], clock: str, width: int | None = None, height: int | None = None
) -> list[str]:
    """Lay out flows without a market; the arguments are those of `screen`."""
    top = [f"softs-fast top  {clock}", title]
    room = None if height is None else height - len(top)
    return fit(top + stack([table for table in flows if table[1]], room), width, height)


def outage(
    endpoint: str, why: str, width: int | None, height: int | None, flows: Sequence[Table] = ()
) -> list[str]:
    """Return the screen while no broker answers; the arguments are those of `screen`."""
    top = [f"softs-fast top  {plain(endpoint)}", "", plain(why), "Trying again."]
    room = None if height is None else height - len(top)
    return fit(top + stack([table for table in flows if table[1]], room), width, height)


def _sums(snapshot: Snapshot) -> str:
    counted = [client.segment.counters for client in snapshot.clients or () if client.segment is not None]
    if not counted:
        return ""
    held, retries = sum(c.held for c in counted), sum(c.retries for c in counted)
    failed, lost = sum(c.failed for c in counted), sum(c.lost for c in counted)
    return f"; {count(held, 'slot')} held, {retries} retried, {failed} failed, {lost} lost"


def _client_row(client: ClientView, rates: Rates) -> list[str]:
    products = ", ".join(plain(product) for product, _, _ in client.products)
    row = [
        str(client.peer_id),
        cut(plain(client.address or "-"), _TEXT_WIDTH),
        cut(products or "-", _TEXT_WIDTH),
    ]
    rate = rates.clients.get(client.peer_id)
    if rate is None:
        row += ["-"] * 4
    else:
        row += [
            si(rate.samples_s),
            share(rate.waited),
            share(rate.producer_bound),
            share(rate.consumer_bound),
        ]
    if client.segment is None:
        return row + ["-"] * 6
    c = client.segment.counters
    return row + [si(n) for n in (c.on_order, c.finished, c.held, c.retries, c.failed, c.lost)]


def _supplier_rows(suppliers: Sequence[SupplierView], rates: Rates) -> list[list[str]]:
    """Return the broker's suppliers, then those that are only in lanes because their broker has ended."""
    unnamed = dict(rates.suppliers)
    rows = []
    for supplier in suppliers:
        pid = supplier.name.rpartition(":")[2]
        rate = unnamed.pop(int(pid), None) if pid.isascii() and pid.isdigit() and len(pid) < 20 else None
        made, busy, *counts = _supplier_cells(rate)
        rows.append(
            [
                str(supplier.peer_id),
                cut(plain(supplier.name or "-"), _TEXT_WIDTH),
                cut(", ".join(map(plain, supplier.patterns)) or "-", _TEXT_WIDTH),
                made,
                busy,
                str(supplier.attached),
                str(supplier.leases),
                f"{supplier.busy_s:.1f}s" if supplier.leases else "-",
                *counts,
            ]
        )
    for process, rate in unnamed.items():
        made, busy, *counts = _supplier_cells(rate)
        rows.append(["-", f"process {process}", "-", made, busy, "-", "-", "-", *counts])
    return rows


def _supplier_cells(rate: SupplierRates | None) -> list[str]:
    if rate is None:
        return ["-"] * 5
    return [
        si(rate.samples_s),
        share(rate.busy),
        si(rate.sleeps_s),
        str(rate.failed),
        str(rate.given_back),
    ]


def _lane_row(lane: LaneRate) -> list[str]:
    product = cut(plain(lane.product_id or "-"), _TEXT_WIDTH)
    return [str(lane.index), str(lane.peer_id), product, _rate(lane.orders_s), str(lane.n_suppliers)]


def _rate(per_second: float | None) -> str:
    return "-" if per_second is None else si(per_second)
