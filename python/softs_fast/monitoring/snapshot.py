"""Snapshots of a market from outside: the peers of a broker, and the counters in the clients' segments."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

from .. import _core
from ..errors import BrokerTimeout, SegmentError, SoftsError, WireError
from ..market import BrokerStats
from ..process import Closing

__all__ = [
    "ClientCounters",
    "ClientView",
    "LaneSupplierView",
    "LaneView",
    "Observer",
    "ProductView",
    "SegmentView",
    "Snapshot",
    "SupplierCounters",
    "SupplierView",
]


@dataclass(frozen=True)
class ClientCounters:
    """A client's counters in its segment; the fields are in their order there."""

    #: Samples delivered.
    samples: int
    #: Nanoseconds spent waiting for samples, and number of waits.
    waited_ns: int
    waits: int
    #: Slots held by the user now.
    held: int
    #: Orders that were placed again.
    retries: int
    #: Orders that failed for good.
    failed: int
    #: Orders that were lost with their supplier.
    lost: int
    #: Slots that are finished and not taken, and slots on order, now.
    finished: int
    on_order: int
    #: When the client started, nanoseconds since 1970.
    started_ns: int


@dataclass(frozen=True)
class SupplierCounters:
    """A supplier's counters in the segment of one client; the fields are in their order there."""

    #: Samples made, and calls that failed.
    samples: int
    failed: int
    #: Nanoseconds in calls of the generator.
    busy_ns: int
    #: How often it blocked to wait for orders.
    sleeps: int
    #: Orders that it claimed and returned.
    given_back: int


@dataclass(frozen=True)
class LaneSupplierView:
    """A supplier that is attached to a client's segment."""

    #: Its bit in `LaneView.attached`.
    index: int
    pid: int
    counters: SupplierCounters


@dataclass(frozen=True)
class LaneView:
    """One lane of a client's segment."""

    index: int
    generation: int
    #: Suppliers that serve it, one bit each.
    attached: int
    #: Orders ever placed, and positions that were skipped.
    tail: int


@dataclass(frozen=True)
class SegmentView:
    """The counters and lanes of a client's segment; none for softs clients, TCP mediums and other machines."""

    segment_id: int
    counters: ClientCounters
    suppliers: tuple[LaneSupplierView, ...]
    lanes: tuple[LaneView, ...]


@dataclass(frozen=True)
class ClientView:
    """A client as its broker knows it, and its segment if that is on this machine."""

    peer_id: int
    #: Address of its medium; None if it has not announced one.
    address: str | None
    #: Random number of the segment at that address, as announced.
    segment_id: int | None
    #: Open orders at the broker, and those of them that are leased to suppliers.
    orders: int
    leased: int
    #: (product id, lane or None, generation), as announced.
    products: tuple[tuple[str, int | None, int], ...]
    segment: SegmentView | None


@dataclass(frozen=True)
class SupplierView:
    """A supplier as its broker knows it."""

    peer_id: int
    name: str
    patterns: tuple[str, ...]
    dialect: str
    #: Its leases, and the age of the oldest in seconds.
    leases: int
    busy_s: float
    #: Lanes that it serves.
    attached: int


@dataclass(frozen=True)
class ProductView:
    """A product that has orders or is announced."""

    product_id: str
    #: Orders in the broker's queue, and orders that are leased to suppliers.
    queued: int
    leased: int
    #: Suppliers with a matching pattern.
    suppliers: int


@dataclass(frozen=True)
class Snapshot:
    """A market at one moment; the observer itself is not in it."""

    endpoint: str
    #: `time.monotonic()` when it was taken.
    at_s: float
    stats: BrokerStats
    #: At most 256 of each; None if the broker does not report them (softs).
    clients: tuple[ClientView, ...] | None
    suppliers: tuple[SupplierView, ...] | None
    products: tuple[ProductView, ...] | None

    def as_dict(self) -> dict[str, Any]:
        """Return the snapshot as dicts and lists, ready for JSON."""
        content = dataclasses.asdict(self)
        del content["at_s"]
        return content


class Observer(Closing):
    """Observes one broker; connects at the first `snapshot`, and again after the broker was restarted.

    Args:
        endpoint: the broker's frontend.

    Raises:
        ConfigError: the endpoint is malformed.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._viewer = _core.Viewer(endpoint)
        #: The segments of clients on this machine, by address.
        self._segments: dict[str, _core.Segment] = {}

    def snapshot(self, timeout_s: float = 2.0) -> Snapshot:
        """Ask the broker for its peers, and read the counters of the clients on this machine.

        Args:
            timeout_s: seconds to wait for the broker.

        Raises:
            BrokerTimeout: no answer within timeout_s (a RuntimeError).
            WireError: the endpoint belongs to a broker, but is not its frontend.
        """
        try:
            answer = self._viewer.detail(int(timeout_s * 1000))
        except WireError as error:
            # Every frontend answers STATS, also that of softs; every backend answers that the command is unknown.
            is_backend = "unknown command" in str(error).lower()
            which = "a broker's backend, for suppliers" if is_backend else "no broker's frontend"
            raise WireError(f"{self.endpoint} is {which}; use the frontend, for clients ({error})") from None
        if answer is None:
            cause = self._viewer.connection_error or "it is connected but does not answer"
            raise BrokerTimeout(f"no statistics from {self.endpoint} within {timeout_s:g} s: {cause}")
        clients, suppliers = answer.pop("clients", None), answer.pop("suppliers", None)
        products = answer.pop("products", None)
        answer["connected_clients"] = max(answer["connected_clients"] - 1, 0)
        if clients is not None:
            me = self._viewer.peer_id
            clients = [client for client in clients if client["peer_id"] != me]
            self._close_others({client["address"] for client in clients})
        return Snapshot(
            endpoint=self.endpoint,
            at_s=time.monotonic(),
            stats=BrokerStats(**answer),
            clients=None if clients is None else tuple(map(self._client, clients)),
            suppliers=None if suppliers is None else tuple(map(_supplier, suppliers)),
            products=None if products is None else tuple(ProductView(**product) for product in products),
        )

    def close(self) -> None:
        """Disconnect from the broker and close all segments. Idempotent."""
        self._viewer.close()
        self._close_others(set())

    def _client(self, client: dict[str, Any]) -> ClientView:
        segment = self._read_segment(client["address"], client["segment_id"])
        return ClientView(products=tuple(client.pop("lanes")), segment=segment, **client)

    def _read_segment(self, address: str | None, segment_id: int | None) -> SegmentView | None:
        """Read the counters at an address that a broker reported; None if that segment is not on this machine."""
        if not address:
            return None
        try:
            stats = _core.lane_stats(self._segment(address))
        except SoftsError:  # on another machine, of a TCP medium, or removed by now
            return None
        if stats is None or stats["segment_id"] != segment_id:
            return None
        suppliers = (
            LaneSupplierView(s["index"], s["pid"], SupplierCounters(*s["counters"][:5]))
            for s in stats["suppliers"]
        )
        return SegmentView(
            segment_id=stats["segment_id"],
            counters=ClientCounters(*stats["client"][:10]),
            suppliers=tuple(suppliers),
            lanes=tuple(LaneView(**lane) for lane in stats["lanes"]),
        )

    def _segment(self, address: str) -> _core.Segment:
        segment = self._segments.get(address)
        if segment is not None:
            if not segment.is_gone:
                return segment
            self._segments.pop(address).close()
        if address.startswith("/"):
            # No directory is allowed in general: only files that a client of softs-fast has created.
            segment = _core.Segment.attach_file(address, [])
        elif ":" in address:
            raise SegmentError(f"{address!r} is a TCP medium")
        else:
            try:
                segment = _core.Segment.attach_shm(address)
            except SegmentError:
                segment = _core.Segment.attach_tickets(address)
        self._segments[address] = segment
        return segment

    def _close_others(self, addresses: set[str]) -> None:
        for address in self._segments.keys() - addresses:
            self._segments.pop(address).close()


def _supplier(supplier: dict[str, Any]) -> SupplierView:
    return SupplierView(**{**supplier, "patterns": tuple(supplier["patterns"])})
