"""``softs-fast stats``: prints the counts of a broker, and what fleets and flows say."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from ..errors import BrokerTimeout
from ..fleet.status import FleetView, fleets
from ..monitoring.flow_status import FlowView, flows
from ..monitoring.snapshot import ClientView, Observer, ProductView, Snapshot, SupplierView
from .fleet_tables import fleet_table
from .flow_tables import flow_tables
from .output import say
from .table import cut, plain, rows_of, si, stack

__all__ = ["render", "run"]

#: Columns for a text of a peer.
_TEXT_WIDTH = 40


def run(arguments: argparse.Namespace) -> None:
    """Print a broker's statistics and the fleets and flows of this user once, or again and again.

    Raises:
        ConfigError: the endpoint is malformed, or the folder of the flows belongs to another user.
        BrokerTimeout: no broker answers; with --watch the command waits for one instead.
        WireError: the endpoint is not the broker's frontend.
        SoftsError: standard output cannot be written.
    """
    with contextlib.ExitStack() as stack:
        observer = None
        if arguments.endpoint is not None:
            observer = stack.enter_context(Observer(arguments.endpoint))
        while True:
            try:
                snapshot = observer.snapshot() if observer is not None else None
                _print(snapshot, fleets(), flows(), arguments.json)
            except BrokerTimeout as error:
                if arguments.watch is None:
                    raise
                print(f"softs-fast: {error}", file=sys.stderr)
            if arguments.watch is None:
                return
            time.sleep(arguments.watch)


def _print(
    snapshot: Snapshot | None, running: Sequence[FleetView], seen: Sequence[FlowView], as_json: bool
) -> None:
    if as_json:
        content = snapshot.as_dict() if snapshot is not None else {}
        both = {"fleets": list(map(dataclasses.asdict, running)), "flows": list(map(_flow, seen))}
        say(json.dumps(content | both))
        return
    if snapshot is not None:
        say(render(snapshot), end="")
    if snapshot is None or running or seen:
        tables = [table for table in (fleet_table(running), *flow_tables((), seen)) if table[1]]
        say("\n".join([f"fleets     {len(running)}", f"flows      {len(seen)}", *stack(tables, None), ""]))


def _flow(flow: FlowView) -> dict[str, Any]:
    content = dataclasses.asdict(flow)
    del content["at_s"]
    return content


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
