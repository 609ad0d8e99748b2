"""market.protocol: same bytes on the wire, same dataclasses."""

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def protocol(sub: Callable[[str], ModuleType]) -> ModuleType:
    return sub("market.protocol")


def test_endpoint_defaults(lib: ModuleType) -> None:
    assert lib.EndpointConfig() == lib.EndpointConfig(
        "ipc:///tmp/softs_frontend.sock", "ipc:///tmp/softs_backend.sock"
    )


def test_endpoints_from_yaml(lib: ModuleType, tmp_path: Path, expect: Callable[..., Any]) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text("frontend: ipc:///a\n")
    assert lib.EndpointConfig.from_yaml(str(path)) == lib.EndpointConfig(frontend="ipc:///a")
    path.write_text("fronted: ipc:///a\n")
    with pytest.raises(TypeError, match="fronted"):
        lib.EndpointConfig.from_yaml(str(path))
    path.write_text("")
    with pytest.raises(expect(softs=TypeError, softs_fast=ValueError)):
        lib.EndpointConfig.from_yaml(str(path))


@pytest.mark.parametrize("name", ["ClientCmd", "SupplierCmd", "OrderState"])
def test_constants(protocol: ModuleType, name: str) -> None:
    def constants(module: ModuleType) -> dict[str, Any]:
        return {key: value for key, value in vars(getattr(module, name)).items() if key.isupper()}

    assert constants(protocol) == constants(importlib.import_module("softs.market.protocol"))


def test_payloads(protocol: ModuleType) -> None:
    theirs = importlib.import_module("softs.market.protocol")
    payload = {"order_id": "c1-1", "offset": 2**40, "raw": b"\x00\xff", "list": ["é", None, True, 1.5]}
    packed = protocol.encode_payload(payload)
    assert packed == theirs.encode_payload(payload)
    assert protocol.decode_payload(packed) == payload
    assert protocol.make_request(b"ORDER", payload) == [b"ORDER", packed]
    assert protocol.make_reply(True, peer_id=3) == theirs.make_reply(True, peer_id=3)
    assert protocol.decode_payload(protocol.make_reply(False, error="no")) == {"ok": False, "error": "no"}


def test_requests(protocol: ModuleType) -> None:
    assert protocol.parse_request(protocol.make_request(b"STATS", {"a": 1})) == (b"STATS", {"a": 1})
    assert protocol.parse_request([b"READY", b""]) == (b"READY", {})
    assert protocol.parse_request([b"READY", b"\x80", b"more"]) == (b"READY", {})
    with pytest.raises(ValueError, match="Expected at least 2 frames, got 1"):
        protocol.parse_request([b"READY"])
    with pytest.raises(ValueError, match="max_map_len"):
        protocol.parse_request([b"READY", b"\x81"])


def test_orders(protocol: ModuleType) -> None:
    order = protocol.Order("c1-1", "p", "sl_1", 8, b"client")
    assert (order.status, order.supplier_id, order.attempts) == (protocol.OrderState.QUEUED, b"", 0)
    order.status = protocol.OrderState.DISPATCHED
    assert protocol.Order("c1-1", "p", "sl_1", 8, b"client").status == protocol.OrderState.QUEUED
    with pytest.raises(TypeError):
        protocol.OrderRequest(order_id="c1-1", product_id="p", address="sl_1", offset=0, colour="red")
    assert protocol.OrderDone("c1-1").success is True
