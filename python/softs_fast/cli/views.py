"""Tables of brokers, fleets and flows, for ``softs-fast status`` and ``top``. Pure: what was seen in, cells out."""

from __future__ import annotations

from collections.abc import Sequence

from ..fleet import FleetView
from ..monitoring import ClientView, FlowView, ProductView, Snapshot, SupplierView
from .table import Table, count, cut, plain, rows_of, si

__all__ = ["fleet_tables", "flow_tables", "flows_line", "render"]

#: Columns for a text of a peer.
_TEXT_WIDTH = 40

_FLEET_HEAD = "FRONTEND STATE FAILED FLEET WORKER THREADS"
_SCALED_HEAD = "SCALED FRONTEND FLEET"
_FLOW_HEAD = "FLOW THREAD PROCESS STEPS STEPS/S ROWS BYTES AGE OPEN QUIET"
_FUNCTION_HEAD = "FUNCTION PROCESS READY NEEDED RUNNING SINCE"
_WORKER_HEAD = "WORKER INSIDE STATE PROCESS TICKET SINCE"


def render(snapshot: Snapshot) -> str:
    """Return a snapshot as text that ends in an empty line."""
    stats = snapshot.stats
    patterns = ", ".join(map(plain, stats.product_ids)) or "none"
    lines = [
        f"broker     {plain(snapshot.endpoint)}",
        f"orders     {stats.pending_orders} pending, {stats.total_completed} completed through the broker",
        f"clients    {stats.connected_clients}",
        f"suppliers  {stats.connected_suppliers}, {stats.available_suppliers} free",
        f"patterns   {cut(patterns, 2 * _TEXT_WIDTH)}",
        "",
    ]
    if snapshot.clients is None:
        lines += ["This broker does not list its peers.", ""]
    if snapshot.clients:
        rows = [_client_row(client) for client in snapshot.clients]
        lines += [*rows_of(_CLIENT_HEAD, rows, n_left=3), ""]
    if snapshot.suppliers:
        rows = [_supplier_row(supplier) for supplier in snapshot.suppliers]
        lines += [*rows_of(_SUPPLIER_HEAD, rows, n_left=4), ""]
    if snapshot.products:
        rows = [_product_row(product) for product in snapshot.products]
        lines += [*rows_of(_PRODUCT_HEAD, rows, n_left=1), ""]
    return "\n".join(lines) + "\n"


_CLIENT_HEAD = (
    "CLIENT MEDIUM PRODUCTS LANES ORDERS LEASED SAMPLES WAITED ORDERED FINISHED HELD RETRIES FAILED LOST"
)
_SUPPLIER_HEAD = "SUPPLIER NAME PATTERNS DIALECT LANES LEASES OLDEST"
_PRODUCT_HEAD = "PRODUCT QUEUED LEASED SUPPLIERS"


def _client_row(client: ClientView) -> list[str]:
    products = ", ".join(plain(product) for product, _, _ in client.products)
    n_lanes = sum(lane is not None for _, lane, _ in client.products)
    row = [
        str(client.peer_id),
        cut(plain(client.address or "-"), _TEXT_WIDTH),
        cut(products or "-", _TEXT_WIDTH),
        str(n_lanes),
        str(client.orders),
        str(client.leased),
    ]
    if client.segment is None:
        return row + ["-"] * 8
    counters = client.segment.counters
    numbers = (
        counters.on_order,
        counters.finished,
        counters.held,
        counters.retries,
        counters.failed,
        counters.lost,
    )
    return [*row, si(counters.samples), f"{counters.waited_ns / 1e9:.1f}s", *map(str, numbers)]


def _supplier_row(supplier: SupplierView) -> list[str]:
    return [
        str(supplier.peer_id),
        cut(plain(supplier.name or "-"), _TEXT_WIDTH),
        cut(", ".join(map(plain, supplier.patterns)) or "-", _TEXT_WIDTH),
        supplier.dialect,
        str(supplier.attached),
        str(supplier.leases),
        f"{supplier.busy_s:.1f}s" if supplier.leases else "-",
    ]


def _product_row(product: ProductView) -> list[str]:
    name = cut(plain(product.product_id), _TEXT_WIDTH)
    return [name, str(product.queued), str(product.leased), str(product.suppliers)]


def fleet_tables(fleets: Sequence[FleetView]) -> tuple[Table, Table]:
    """Lay out the workers of fleets, a row each, and why their number was changed last."""
    rows = [
        [
            plain(fleet.frontend),
            plain(worker.state),
            cut(plain(worker.error.rstrip().rpartition("\n")[2] or "-"), _TEXT_WIDTH),
            str(fleet.pid),
            plain(worker.name.removeprefix("worker ")),
            plain(worker.threads or "-"),
        ]
        for fleet in fleets
        for worker in fleet.workers
    ]
    scaled = [
        [plain(fleet.scaled), plain(fleet.frontend), str(fleet.pid)] for fleet in fleets if fleet.scaled
    ]
    return (_FLEET_HEAD, rows, 3), (_SCALED_HEAD, scaled, 2)


def flows_line(flows: Sequence[FlowView]) -> str:
    """Return how many flows there are."""
    return f"{count(len(flows), 'flow')} of this user on this host"


def flow_tables(before: Sequence[FlowView], now: Sequence[FlowView]) -> list[Table]:
    """Lay out flows, their functions and their workers.

    Args:
        before: Views of the flows an interval ago, for rates; a flow that is not among them has none.
        now: Views of the flows now.
    """
    earlier = {(one.pid, one.name): one for one in before if not one.error}
    return [
        (_FLOW_HEAD, [_flow(one, earlier.get((one.pid, one.name))) for one in now], 2),
        (
            _FUNCTION_HEAD,
            [
                [
                    _text(one.name),
                    str(flow.pid),
                    si(one.ready),
                    si(one.needed),
                    str(one.running),
                    _seconds(one.seconds) if one.running else "-",
                ]
                for flow in now
                for one in flow.functions
            ],
            1,
        ),
        (
            _WORKER_HEAD,
            [
                [
                    str(one.worker),
                    _text(one.inside or "-"),
                    _text(one.state or "-"),
                    str(one.pid),
                    str(one.ticket or "-"),
                    _seconds(one.seconds),
                ]
                for flow in now
                for one in flow.workers
            ],
            3,
        ),
    ]


def _flow(flow: FlowView, before: FlowView | None) -> list[str]:
    if flow.error:
        return [_text(flow.name), cut(plain(flow.error), 2 * _TEXT_WIDTH), str(flow.pid), *["-"] * 7]
    elapsed_s = flow.at_s - before.at_s if before is not None else 0.0
    is_same = before is not None and elapsed_s > 0 and flow.open_s >= before.open_s
    rate = si(max(flow.steps - before.steps, 0) / elapsed_s) if is_same and before is not None else "-"
    return [
        _text(flow.name),
        f"{_text(flow.doing)} {_seconds(flow.doing_s)}",
        str(flow.pid),
        str(flow.steps),
        rate,
        si(flow.rows),
        si(flow.n_bytes),
        str(flow.age),
        _seconds(flow.open_s),
        _seconds(flow.quiet_s),
    ]


def _text(text: str) -> str:
    return cut(plain(text), _TEXT_WIDTH)


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f}s"
