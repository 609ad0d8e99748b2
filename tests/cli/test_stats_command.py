"""``softs-fast stats``."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from market import Market
from shell import Command

import softs_fast as sf
from softs_fast import _core
from softs_fast.cli.stats import render
from softs_fast.market.protocol import BrokerStats
from softs_fast.monitoring.snapshot import (
    ClientCounters,
    ClientView,
    Observer,
    ProductView,
    Snapshot,
    SupplierView,
)


def test_who_is_connected(command: Command, busy_market: Market) -> None:
    status, out, errors = command.run("stats", busy_market.frontend)
    assert (status, errors) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"broker     {busy_market.frontend}"
    assert "clients    1" in lines, "it does not count itself"
    assert "suppliers  1, 1 free" in lines
    assert "patterns   p.*" in lines
    (supplier,) = [line.split() for line in lines[lines.index("") :] if "native" in line]
    assert supplier[2:4] == ["p.*", "native"]


def test_json(command: Command, busy_market: Market) -> None:
    status, out, _ = command.run("stats", busy_market.frontend, "--json")
    assert status == 0
    answer = json.loads(out)
    assert answer["endpoint"] == busy_market.frontend
    assert answer["stats"]["connected_clients"] == 1
    (client,) = answer["clients"]
    assert client["segment"]["segment_id"] == client["segment_id"] != 0
    assert [product for product, _, _ in client["products"]] == ["p1"]
    (supplier,) = answer["suppliers"]
    assert supplier["patterns"] == ["p.*"]
    (product,) = answer["products"]
    assert (product["product_id"], product["suppliers"]) == ("p1", 1)


def test_a_client_at_work_counts(market: Market, eventually: Callable[..., None]) -> None:
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


def test_a_softs_broker_tells_less(command: Command, market: Market) -> None:
    market.broker("softs")
    market.supplier()
    status, out, errors = command.run("stats", market.frontend)
    assert (status, errors) == (0, "")
    assert "suppliers  1" in out
    assert "clients    0" in out
    assert "This broker does not list its peers." in out
    status, out, _ = command.run("stats", market.frontend, "--json")
    answer = json.loads(out)
    assert (answer["clients"], answer["suppliers"]) == (None, None)
    assert answer["stats"]["product_ids"] == ["p.*"]


@pytest.mark.parametrize("package", ["softs", "softs_fast"])
@pytest.mark.parametrize("arguments", [["stats"], ["top", "--once"]])
def test_the_endpoint_for_suppliers(
    command: Command, market: Market, package: str, arguments: list[str]
) -> None:
    market.broker(package)
    status, out, errors = command.run(*arguments, market.backend)
    assert (status, out) == (1, "")
    text = (
        f"softs-fast: {market.backend} is a broker's backend, for suppliers; use the frontend, for clients ("
    )
    assert errors.startswith(text)
    assert errors.count("\n") == 1


def test_the_endpoint_for_students(command: Command, frontend: str, backend: str) -> None:
    control = f"{frontend}_control"
    with sf.Broker(frontend, backend, control, f"{control}_pub"):
        status, out, errors = command.run("stats", control)
    assert (status, out) == (1, "")
    assert errors.startswith(
        f"softs-fast: {control} is no broker's frontend; use the frontend, for clients ("
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_watch_goes_on_until_a_signal_comes(command: Command, market: Market, number: int) -> None:
    broker = market.broker()
    process = command.start("stats", market.frontend, "--json", "--watch", "0.01")
    assert process.stdout is not None
    assert process.stderr is not None
    for _ in range(3):
        assert json.loads(process.stdout.readline())["stats"]["connected_clients"] == 0
    broker.kill()
    assert "no statistics from" in process.stderr.readline()
    market.broker()
    assert json.loads(process.stdout.readline())["stats"]["connected_clients"] == 0
    status, _, errors = command.end(process, number)
    assert status == 0
    assert "Traceback" not in errors


def test_counters_of_a_segment(
    busy_market: Market, frontend: str, write_counters: Callable[..., None]
) -> None:
    with (
        sf.Client(frontend, sf.ShmMedium, 100, 3) as client,
        Observer(frontend) as observer,
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
        snapshot = observer.snapshot()
        assert snapshot.clients is not None
        (seen,) = [view for view in snapshot.clients if view.address == client.medium.address]
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


def test_segments_of_clients_that_left_are_let_go(market: Market) -> None:
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


def test_texts_of_peers_cannot_command_the_terminal() -> None:
    evil = "\x1b[2J\x07\nfake"
    snapshot = Snapshot(
        "ipc://x",
        0.0,
        BrokerStats(0, 0, 1, 1, 0, [evil]),
        (ClientView(1, evil, 1, 0, 0, ((evil, 0, 1),), None),),
        (SupplierView(1, evil, (evil,), "native", 0, 0.0, 0),),
        (ProductView(evil, 0, 0, 0),),
    )
    text = render(snapshot)
    assert not any(ord(c) < 32 and c != "\n" for c in text)
    assert text.count("\\x1b[2J\\x07\\nfake") == 6
    assert "\nfake" not in text.replace("\\nfake", "")
