"""``softs-fast status`` of a broker."""

from __future__ import annotations

import json
import signal

import pytest
from market import Market
from shell import Command, Run

import softs_fast as sf
from softs_fast.cli.views import render
from softs_fast.market.protocol import BrokerStats
from softs_fast.monitoring.snapshot import (
    ClientView,
    ProductView,
    Snapshot,
    SupplierView,
)


def test_the_peers_that_are_connected(run: Run, busy_market: Market) -> None:
    status, out, errors = run("status", busy_market.frontend)
    assert (status, errors) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"broker     {busy_market.frontend}"
    assert "clients    1" in lines, "it does not count itself"
    assert "suppliers  1, 1 free" in lines
    assert "patterns   p.*" in lines
    (supplier,) = [line.split() for line in lines[lines.index("") :] if "native" in line]
    assert supplier[2:4] == ["p.*", "native"]


def test_json(run: Run, busy_market: Market) -> None:
    status, out, _ = run("status", busy_market.frontend, "--json")
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


def test_a_softs_broker_tells_less(run: Run, market: Market) -> None:
    market.broker("softs")
    market.supplier()
    status, out, errors = run("status", market.frontend)
    assert (status, errors) == (0, "")
    assert "suppliers  1" in out
    assert "clients    0" in out
    assert "This broker does not list its peers." in out
    status, out, _ = run("status", market.frontend, "--json")
    answer = json.loads(out)
    assert (answer["clients"], answer["suppliers"]) == (None, None)
    assert answer["stats"]["product_ids"] == ["p.*"]


@pytest.mark.parametrize("package", ["softs", "softs_fast"])
@pytest.mark.parametrize("arguments", [["status"], ["top", "--once"]])
def test_the_endpoint_for_suppliers(run: Run, market: Market, package: str, arguments: list[str]) -> None:
    market.broker(package)
    status, out, errors = run(*arguments, market.backend)
    assert (status, out) == (1, "")
    text = (
        f"softs-fast: {market.backend} is a broker's backend, for suppliers; use the frontend, for clients ("
    )
    assert errors.startswith(text)
    assert errors.count("\n") == 1


def test_the_endpoint_for_students(run: Run, frontend: str, backend: str) -> None:
    control = f"{frontend}_control"
    with sf.Broker(frontend, backend, control, f"{control}_pub"):
        status, out, errors = run("status", control)
    assert (status, out) == (1, "")
    assert errors.startswith(
        f"softs-fast: {control} is no broker's frontend; use the frontend, for clients ("
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_watch_goes_on_until_a_signal_comes(command: Command, market: Market, number: int) -> None:
    broker = market.broker()
    process = command.start("status", market.frontend, "--json", "--watch", "--interval", "0.05")
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
