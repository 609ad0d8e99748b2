"""Which host a text names, and at which addresses a server needs TLS and a proof of identity."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from softs_fast.errors import ConfigError
from softs_fast.trust import Address, UnknownHostError, check_reachable

LOOPBACK, REMOTE = Address("127.0.0.1", 1, ("127.0.0.1",)), Address("10.0.0.1", 29401, ("10.0.0.1",))


@pytest.mark.parametrize(
    ("text", "scheme"),
    [
        *((text, "") for text in ("", "host", ":1", "a:", "a:b", "a:+1", "a:-1", "a:65536", "a:\u0661")),
        *((text, "") for text in ("::1:80", "[::1:80", "::1]:80", "[nope]:80", "a b:80", "*:1", "a:*", "tcp://a:1")),
        # Those of rust/net/src/transport/endpoint.rs.
        *((f"tcp://{text}", "tcp://") for text in ("", "localhost", ":1", "a:b", "a:", "a:+1", "a:65536")),
        *((f"tcp://{text}", "tcp://") for text in ("::1:80", "[::1:80", "[nope]:80", "a b:80")),
        *((text, "tcp://") for text in ("", "inproc://a", "ipc://*", "a:1")),
    ],
)  # fmt: skip
def test_texts_that_are_no_address(text: str, scheme: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Address.parse(text, "master", scheme)
    assert str(raised.value).startswith(f"address of master is {text!r}; expected {scheme}HOST:PORT, such as")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("teachers", ("teachers", 4700)),
        ("10.0.0.1", ("10.0.0.1", 4700)),
        ("[::1]", ("::1", 4700)),
        ("teachers:5", ("teachers", 5)),
        ("[::1]:0", ("::1", 0)),
    ],
)
def test_an_address_may_have_the_port_of_its_service(text: str, found: tuple[str, int]) -> None:
    assert Address.split(text, "link", default_port=4700) == found


@pytest.mark.parametrize("text", ["", "::1", "teachers:", "a b", "*"])
def test_a_port_by_default_makes_no_address_of_other_texts(text: str) -> None:
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        Address.split(text, "link", default_port=4700)


@pytest.mark.parametrize(
    ("text", "numeric", "is_loopback"),
    [
        ("127.0.0.1:5", "127.0.0.1", True),
        ("[::1]:5", "::1", True),
        ("localhost:5", "127.0.0.1", True),
        ("0.0.0.0:5", "0.0.0.0", False),
        ("192.0.2.7:5", "192.0.2.7", False),
        ("[fe80::1%1]:5", "fe80::1", False),
        ("tcp://*:*", "0.0.0.0", False),
        ("tcp://127.0.0.1:5", "127.0.0.1", True),
    ],
)
def test_which_addresses_others_reach(text: str, numeric: str, is_loopback: bool) -> None:
    address = Address.parse(text, "master", "tcp://" if "//" in text else "")
    assert numeric in address.numeric
    assert address.is_loopback == is_loopback
    assert address.is_unspecified == (numeric == "0.0.0.0")
    plain = text.removeprefix("tcp://").replace(":*", ":0")
    assert address.target() == plain
    assert address.target(9) == f"{plain.rpartition(':')[0]}:9"


@pytest.mark.parametrize(
    ("found", "is_loopback"),
    [
        (["127.0.0.1", "::1"], True),
        (["127.0.0.1", "10.0.0.1"], False),
        (["10.0.0.1", "127.0.0.1"], False),
        (["::1", "2001:db8::1"], False),
    ],
)
def test_a_name_is_loopback_only_if_all_its_addresses_are(
    monkeypatch: pytest.MonkeyPatch, found: list[str], is_loopback: bool
) -> None:
    def lookup(host: str, port: int, **options: Any) -> list[Any]:
        return [(0, 0, 0, "", (one, port)) for one in found]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    address = Address.parse("both:5", "master")
    assert address.numeric == tuple(found)
    assert address.is_loopback == is_loopback


def test_a_name_that_is_not_known() -> None:
    with pytest.raises(UnknownHostError, match=r"address of master 'a\.invalid:1': "):
        Address.parse("a.invalid:1", "master")


def test_the_own_side_of_a_connection() -> None:
    nowhere = "255.255.255.255"
    assert Address("far", 1, (nowhere, "127.0.0.1")).own_side() == "127.0.0.1"
    with pytest.raises(ConfigError, match=f"no way from this machine to far:1, at {nowhere}"):
        Address("far", 1, (nowhere,)).own_side()


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("proof", [False, True])
def test_what_a_server_needs_that_others_reach(tls: bool, proof: bool) -> None:
    check_reachable(LOOPBACK, "coordinator", tls=tls, proof=proof)
    check_reachable(REMOTE, "coordinator", tls=tls, proof=proof, insecure=True)
    if tls and proof:
        check_reachable(REMOTE, "coordinator", tls=tls, proof=proof)
        return
    with pytest.raises(ConfigError) as raised:
        check_reachable(REMOTE, "coordinator", tls=tls, proof=proof)
    lack, remedy = (
        ("a proof of identity", "--tls-ca")
        if tls
        else ("TLS", "--token-file, or --tls-cert, --tls-key and --tls-ca")
    )
    assert str(raised.value) == (
        f"coordinator at 10.0.0.1:29401 is reachable from other machines without {lack}; give {remedy}, or listen at "
        "127.0.0.1"
    )
