"""Prometheus' metrics: the text, and the server."""

from __future__ import annotations

import json
import re
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from market import Market
from prometheus_client import CollectorRegistry, generate_latest
from snapshots import client, counters, maker, segment, snapshot, supplier

import softs_fast as sf
from softs_fast.monitoring.prometheus import Collector, MetricsServer, render_metrics
from softs_fast.monitoring.snapshot import LaneView

SAMPLE = re.compile(r'(softs_fast_[a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)+)\})? (\S+)')


def parse(text: str) -> dict[str, float]:
    """Check the format line by line; the values by name and labels."""
    values: dict[str, float] = {}
    kinds: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# HELP "):
            assert line.endswith("."), line
        elif line.startswith("# TYPE "):
            name, kind = line.split()[2:]
            assert name not in kinds
            assert (kind == "counter") == name.endswith("_total"), line
            kinds[name] = kind
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            name, labels, value = match.groups()
            assert name in kinds, "declared before it is used"
            key = f"{name}{{{labels}}}" if labels else name
            assert key not in values, "each set of labels once"
            values[key] = float(value)
    return values


def test_a_market_as_text() -> None:
    seen = segment(
        counters(samples=2**53 + 1, waited_ns=1_500_000_000, held=2),
        maker(3, 77, samples=4, busy_ns=500_000_000),
        lanes=(LaneView(0, 2, 0b1011, 99),),
    )
    text = render_metrics(snapshot(0.0, client(seen), suppliers=(supplier(2),), completed=7))
    values = parse(text)
    labels = 'client="1",address="sl_1"'
    assert f"softs_fast_client_samples_total{{{labels}}} {2**53 + 1}\n" in text, "exactly"
    assert values["softs_fast_up"] == 1
    assert values["softs_fast_wire_orders_total"] == 7
    assert values[f"softs_fast_client_wait_seconds_total{{{labels}}}"] == 1.5
    assert values[f"softs_fast_client_held_slots{{{labels}}}"] == 2
    assert values[f'softs_fast_lane_suppliers{{{labels},lane="0",generation="2"}}'] == 3
    assert values[f'softs_fast_lane_positions_total{{{labels},lane="0",generation="2"}}'] == 99
    assert values[f'softs_fast_lane_supplier_busy_seconds_total{{{labels},index="3",pid="77"}}'] == 0.5
    assert values['softs_fast_product_queued_orders{product="p1"}'] == 3
    assert values['softs_fast_supplier_leases{supplier="1",name="host:77"}'] == 2


def test_no_broker_as_text() -> None:
    assert parse(render_metrics(None)) == {"softs_fast_up": 0}


def test_names_of_peers_are_escaped() -> None:
    text = render_metrics(snapshot(0.0, client(None, address='a"b\\c\nd')))
    assert parse(text)
    assert 'address="a\\"b\\\\c\\nd"' in text


def test_the_server(market: Market) -> None:
    market.broker()
    market.supplier()
    with MetricsServer(market.frontend, "127.0.0.1:0") as metrics:
        assert metrics.url.startswith("http://127.0.0.1:")
        for _ in range(3):
            with urllib.request.urlopen(metrics.url, timeout=20) as answer:
                assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
                values = parse(answer.read().decode())
            assert (values["softs_fast_clients"], values["softs_fast_suppliers"]) == (0, 1)
        with pytest.raises(urllib.error.HTTPError, match="404") as missing:
            urllib.request.urlopen(metrics.url + "/other", timeout=20)
        missing.value.close()
        with pytest.raises(sf.EndpointInUse, match="cannot serve metrics at 127"):
            MetricsServer(market.frontend, metrics.url.split("/")[2]).start()
        metrics.start()
    metrics.close()


def test_a_broker_that_is_down_is_a_metric(frontend: str) -> None:
    with MetricsServer(frontend, "localhost:0") as metrics, urllib.request.urlopen(metrics.url) as answer:
        assert parse(answer.read().decode()) == {"softs_fast_up": 0}


def test_a_scraper_that_sends_no_request_is_disconnected(market: Market) -> None:
    market.broker()
    with MetricsServer(market.frontend, "127.0.0.1:0") as metrics:
        host, port = metrics.url.split("/")[2].split(":")
        with socket.create_connection((host, int(port))) as silent:
            silent.sendall(b"GET /metr")
            with urllib.request.urlopen(metrics.url, timeout=20) as answer:
                assert parse(answer.read().decode())["softs_fast_up"] == 1
            assert silent.recv(1) == b""


def test_a_scraper_that_is_slow_is_disconnected_though_it_never_pauses(market: Market) -> None:
    market.broker()
    with MetricsServer(market.frontend, "127.0.0.1:0") as metrics:
        host, port = metrics.url.split("/")[2].split(":")
        with socket.create_connection((host, int(port))) as slow:
            slow.sendall(b"GET /metrics HTTP/1.0\r\nX: ")
            slow.settimeout(0.2)
            sent = 0
            while True:
                assert sent < 1000, "it was not disconnected"
                try:
                    slow.sendall(b"x")
                    sent += 1
                    if slow.recv(1) == b"":
                        break
                except TimeoutError:
                    continue
                except ConnectionError:
                    break
        with urllib.request.urlopen(metrics.url, timeout=20) as answer:
            assert parse(answer.read().decode())["softs_fast_up"] == 1


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", ":9464", "127.0.0.1:-1", "127.0.0.1:65536", "127.0.0.1:\u0661", "0.0.0.0:0", "[::]:0"],
)
def test_addresses_that_it_cannot_have(frontend: str, address: str) -> None:
    with pytest.raises(sf.ConfigError, match="metrics"):
        MetricsServer(frontend, address)


def test_remote_addresses_are_asked_for(frontend: str) -> None:
    with MetricsServer(frontend, "0.0.0.0:0", allow_remote=True) as metrics:
        assert metrics.url.startswith("http://0.0.0.0:")
    with pytest.raises(sf.ConfigError, match="bad endpoint"):
        MetricsServer("nowhere", "127.0.0.1:0")


def test_a_registry_of_prometheus_client_has_the_same_metrics() -> None:
    seen = segment(counters(samples=5, waited_ns=1_500_000_000), maker(3, 77, samples=4))
    text = render_metrics(snapshot(0.0, client(seen), suppliers=(supplier(2),)))
    registry = CollectorRegistry()
    registry.register(Collector(lambda: text))
    theirs, ours = (
        {frozenset(re.split("[{,}]", key)): value for key, value in parse(one).items()}
        for one in (generate_latest(registry).decode(), text)
    )
    assert theirs == ours
    assert len(theirs) > 20


def test_panels_of_the_dashboard_show_metrics_that_are_there() -> None:
    board = json.loads((Path(__file__).parents[2] / "docs" / "grafana.json").read_text())
    shown = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"softs_fast_\w+", target["expr"])
    }
    text = render_metrics(snapshot(0.0, client(segment(counters(), maker(0, 1)))))
    assert len(shown) > 10
    assert shown <= set(re.findall(r"^# TYPE (\S+)", text, flags=re.MULTILINE))
