"""Snapshots of real markets: what the counters in the clients' segments mean."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from market import Market
from waiting import eventually

import softs_fast as sf
from softs_fast import _core
from softs_fast.monitoring.snapshot import ClientCounters, ClientView, Observer


def write_counters(
    address: str,
    slots_len: int,
    client: list[int],
    suppliers: dict[int, tuple[int, list[int]]] | None = None,
) -> None:
    """Write the words of a client's or supplier's counters into a segment, where docs/segment.md has them.

    Args:
        address: Address of the segment.
        slots_len: Size of its slots, bytes.
        client: The client's counters.
        suppliers: Process and counters of each supplier, by index.
    """
    lanes_at = -(-slots_len // 4096) * 4096
    with open(Path("/dev/shm", address), "r+b") as file:
        file.seek(lanes_at + 512)
        file.write(struct.pack(f"<{len(client)}Q", *client))
        for index, (pid, counters) in (suppliers or {}).items():
            entry = lanes_at + 9216 + 128 * index
            file.seek(entry)
            file.write(struct.pack("<QQII", pid << 32 | 1, 1, 0, 1))
            file.seek(entry + 64)
            file.write(struct.pack(f"<{len(counters)}Q", *counters))


def test_a_client_at_work_counts(market: Market) -> None:
    market.broker()
    market.supplier()
    client = market.client(n_samples=10**9)

    def counters() -> ClientCounters | None:
        (view,) = observer.snapshot().clients or (None,)
        return view.segment.counters if view is not None and view.segment is not None else None

    with Observer(market.frontend) as observer:
        eventually(lambda: (seen := counters()) is not None and seen.samples > 0 and seen.started_ns > 0)
        assert len(observer._segments) == 1
    client.kill()
    _core.sweep()  # as the next peer would


def test_observers_of_one_broker_do_not_replace_each_other(market: Market) -> None:
    market.broker()
    with Observer(market.frontend) as first, Observer(market.frontend) as second:
        for observer in (first, second, first):
            assert observer.snapshot().clients is not None


def test_counters_of_a_segment(market: Market) -> None:
    market.broker()
    market.supplier()
    market.client().event("done")
    with (
        sf.Client(market.frontend, sf.ShmMedium, 100, 3) as client,
        Observer(market.frontend) as observer,
    ):
        slot = client.request_sample("p-unserved-q", timeout_ms=1)
        assert slot is None
        numbers = list(range(1, 17))
        write_counters(client.medium.address, 300, numbers, {5: (4321, [9, 8, 7, 6, 5, 4, 3, 2])})
        segment = _core.Segment.attach_shm(client.medium.address)
        stats = _core.lane_stats(segment)
        segment.close()
        assert stats is not None
        assert stats["client"] == numbers
        assert stats["suppliers"] == [{"index": 5, "pid": 4321, "counters": [9, 8, 7, 6, 5, 4, 3, 2]}]
        views: list[ClientView] = []
        while not views:
            # The client may not have been connected yet when it asked: then it tells the broker at its next request.
            assert client.request_sample("p-unserved-q", timeout_ms=1) is None
            write_counters(client.medium.address, 300, numbers, {5: (4321, [9, 8, 7, 6, 5, 4, 3, 2])})
            views = [
                view for view in observer.snapshot().clients or () if view.address == client.medium.address
            ]
        (seen,) = views
        assert seen.segment is not None
        assert (seen.segment.counters.samples, seen.segment.counters.started_ns) == (1, 10)
        (supplier,) = seen.segment.suppliers
        assert (supplier.pid, supplier.counters.samples, supplier.counters.given_back) == (4321, 9, 5)
    with pytest.raises(sf.SegmentError):
        _core.lane_stats(segment)


def test_files_are_looked_into_only_if_a_client_made_them(market: Market, tmp_path: Path) -> None:
    market.broker()
    plain = tmp_path / "plain"
    plain.write_bytes(bytes(8192))
    with Observer(market.frontend) as observer:
        for address in (
            str(plain),
            str(tmp_path / "missing"),
            "/etc/passwd",
            "127.0.0.1:80",
            "../x",
            "",
            None,
        ):
            assert observer._read_segment(address, 0) is None
        made = sf.FilesystemMedium(str(tmp_path / "made"), 64, 2, create=True)
        segment = _core.Segment.attach_file(made.address)
        stats = _core.lane_stats(segment)
        segment.close()
        assert stats is not None
        assert observer._read_segment(made.address, stats["segment_id"]) is not None
        assert observer._read_segment(made.address, stats["segment_id"] ^ 1) is None, "another machine's"
        made.close()
        made.unlink()


def test_segments_of_clients_that_left_are_closed(market: Market) -> None:
    market.broker()
    with Observer(market.frontend) as observer:
        with sf.Client(market.frontend, sf.ShmMedium, 64, 2) as client:
            snapshot = observer.snapshot()
            while not snapshot.clients:
                client.request_sample("p", timeout_ms=1)
                snapshot = observer.snapshot()
            assert [view.segment is not None for view in snapshot.clients] == [True]
        snapshot = observer.snapshot()
        while snapshot.clients:
            snapshot = observer.snapshot()
        assert observer._segments == {}
