"""What peers without the secret get: a bounded number of connections, bytes and lines, and never a failure of the server."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from raw_client import RawClient, job_of
from waiting import WATCHDOG_S

from softs_fast.errors import ConfigError
from softs_fast.paramserver.server.http import budget as budget_module
from softs_fast.paramserver.server.http.application import Application
from softs_fast.paramserver.server.http.budget import Budget, Sparse
from softs_fast.paramserver.server.http.request import CONNECTION
from softs_fast.paramserver.server.http.sessions import Sessions
from softs_fast.paramserver.server.options import ServerOptions
from softs_fast.paramserver.server.service import Service
from softs_fast.paramserver.wire import answers
from softs_fast.paramserver.wire.manifest import Manifest
from softs_fast.paramserver.wire.messages import Admission, decode, encode, nonce_of
from softs_fast.trust import TlsFiles

MAC = "0" * 64


@dataclass(eq=False)
class Peer:
    """A connection; `is_open` until the server closes it."""

    is_open: bool = True

    def abort(self) -> None:
        self.is_open = False


def test_the_oldest_connection_without_a_proof_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_module, "_CONNECTIONS", 3)
    budget, peers = Budget(), [Peer() for _ in range(6)]
    for peer in peers[:3]:
        budget.arrived(peer)
    budget.prove(peers[0])
    budget.left(peers[1])
    for peer in peers[3:]:
        budget.arrived(peer)
    assert [one.is_open for one in peers] == [True, True, False, True, True, True]


def test_the_oldest_body_without_a_proof_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_module, "_BYTES", 100)
    budget, peers = Budget(), [Peer() for _ in range(4)]
    for peer in peers[:3]:
        budget.hold(peer, 30)
    budget.release(peers[0])
    budget.hold(peers[3], 30)
    assert all(one.is_open for one in peers)
    budget.prove(peers[1])
    budget.hold(peers[3], 50)
    assert [one.is_open for one in peers] == [True, True, False, True]


# --- Any request ---

HEADERS = st.lists(
    st.tuples(
        st.sampled_from(
            ["Authorization", "Content-Length", "Upload-Offset", "Range", "If-Match", "Transfer-Encoding"]
        ),
        st.text(st.characters(max_codepoint=255), max_size=40)
        | st.sampled_from(
            [f"SF1 id={one}, n=1, mac={MAC}" for one in ("owner", "new", "0123456789abcdef", "x")]
        ),
    ),
    max_size=6,
)


class Connection:
    """A connection of which nothing is asked but to be closed."""

    def abort(self) -> None:
        return


def answer_to(
    method: str,
    path: str,
    query: str,
    headers: list[tuple[str, str]],
    pieces: list[bytes],
    has_token: bool = False,
) -> tuple[int, int, bytes]:
    """Return status and body of the answer to a request without the secret; between them, how many bytes of it were taken."""
    found: list[int] = []
    said = b""
    n_taken = 0
    left = list(pieces)

    async def receive() -> dict[str, Any]:
        nonlocal n_taken
        body = left.pop(0) if left else b""
        n_taken += len(body)
        return {"type": "http.request", "body": body, "more_body": bool(left)}

    async def send(message: Any) -> None:
        nonlocal said
        if message["type"] == "http.response.start":
            found.append(message["status"])
        else:
            said += message["body"]

    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode("latin-1"),
        "query_string": query.encode("latin-1"), "state": {CONNECTION: Connection()},
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers],
    }  # fmt: skip
    application = Application.__new__(Application)
    application._sessions = Sessions(bytes(32), bytes(16), bytes(32))
    application.budget, application.n_sending, application._has_token = Budget(), 0, has_token
    application._driver = Driver()  # type: ignore[assignment]
    application._owner = NoPages()  # type: ignore[assignment]
    asyncio.run(application(scope, receive, send))
    (status,) = found
    return status, n_taken, said


class Driver:
    """What is left of a driver if no request gets that far."""

    class run:
        version = "1.0"


class NoPages:
    """An owner without a page."""

    def public(self, path: str) -> None:
        return None


@given(
    st.sampled_from(["GET", "POST", "PUT", "HEAD", "DELETE"]),
    st.sampled_from(
        [
            answers.JOIN,
            answers.MODEL,
            answers.PUSH,
            "/v1/push/1.0",
            "/v1/push/x",
            answers.STATUS,
            answers.CONTROL,
            answers.HEARTBEAT,
            "/",
        ]
    ),
    st.text(st.characters(max_codepoint=255), max_size=60),
    HEADERS,
    st.lists(st.binary(max_size=2000), max_size=4),
)
@example("GET", answers.STATUS, "&".join(f"a{i}=1" for i in range(9)), [], [])
@example(
    "POST",
    answers.JOIN,
    "",
    [("Authorization", f"SF1 id=new, n=0, mac={MAC}")],
    [b'{"nonce":"' + b"0" * 32 + b'"}'],
)
def test_no_request_without_the_secret_is_a_failure_of_the_server(
    method: str, path: str, query: str, headers: list[tuple[str, str]], pieces: list[bytes]
) -> None:
    assert answer_to(method, path, query, headers, pieces)[0] in (400, 401, 404, 408, 413, 429)


@pytest.mark.parametrize("path", [answers.PUSH, answers.CONTROL, "/v1/push/1.0"])
def test_little_is_read_in_the_name_of_the_owner(path: str) -> None:
    """Its name is known to all."""
    headers = [("Authorization", f"SF1 id=owner, n=1, mac={MAC}")]
    status, n_taken, _ = answer_to("POST", path, "", headers, [bytes(1024)] * 256)
    assert status in (401, 413)
    assert n_taken <= 5 << 10


@given(st.binary(max_size=200))
def test_the_nonce_of_a_join_is_found_without_parsing(junk: bytes) -> None:
    assert len(nonce_of(junk)) in (0, 16)
    client = RawClient(None, Manifest.of(job_of().model()), name=junk.hex()[:64])  # type: ignore[arg-type]
    assert nonce_of(encode(client.join_request())) == client.nonce
    fake = f'"nonce":"{"a" * 32}"'
    assert nonce_of(encode(client.join_request(name=fake[:128]))) == client.nonce


def test_tls_with_a_token_is_told_the_secret() -> None:
    status, _, said = answer_to("GET", answers.INVITE, "", [], [], has_token=True)
    assert (status, decode(Admission, said)) == (200, Admission(bytes(16).hex(), bytes(32).hex()))
    assert answer_to("GET", answers.STATUS, "", [], [], has_token=True)[0] == 401


@pytest.mark.parametrize("has_tls", [False, True])
def test_no_other_server_tells_the_secret(serve, tmp_path: Path, has_tls: bool) -> None:
    if has_tls:
        pytest.importorskip("cryptography", reason="makes certificates")
    tls = TlsFiles(tmp_path / "c.pem", tmp_path / "k.pem", self_signed=True) if has_tls else None
    server = serve(options={"tls": tls})
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with pytest.raises(HTTPError) as raised:
        urlopen(server.invite.url + answers.INVITE, timeout=WATCHDOG_S, context=context)
    assert raised.value.code == 401
    raised.value.close()


def test_a_query_of_many_fields_is_refused(serve, enter) -> None:
    client = enter(serve())
    answer = client.ask("GET", f"{answers.STATUS}?" + "&".join(f"a{i}=1" for i in range(9)))
    assert (answer.status, answer.is_signed) == (400, True)
    assert b"a query has more than 8 fields" in answer.body


def test_an_honest_worker_joins_beside_silent_connections(
    serve, enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget_module, "_CONNECTIONS", 8)
    server = serve()
    first = enter(server)
    parts = urlsplit(server.invite.url)
    peers = [socket.create_connection((parts.hostname, parts.port), timeout=45) for _ in range(24)]
    try:
        head = f"POST {answers.PUSH} HTTP/1.1\r\nHost: x\r\nAuthorization: SF1 id=owner, n=1, mac={MAC}\r\nContent-Length: 200000\r\n\r\n"
        for peer in peers[:4]:
            peer.sendall(head.encode())
        assert enter(server).pull().status == 200
        assert first.pull().status == 200
        # The oldest are closed.
        assert peers[5].recv(1) == b""
    finally:
        for peer in peers:
            peer.close()


def test_a_line_of_one_kind_is_written_once_in_a_while() -> None:
    now = [0.0]
    sparse = Sparse(lambda: now[0])

    def line(text: str) -> str | None:
        record = logging.LogRecord("x", logging.WARNING, "x", 1, text, ("a",), None)
        return record.getMessage() if sparse.filter(record) else None

    assert [line("bad %s") for _ in range(1000)] == ["bad a"] + [None] * 999
    assert line("worse %s") == "worse a"
    now[0] = 10.0
    assert line("bad %s") == "bad a (999 more in 10 s)"
    assert line("bad %s") is None


# --- What the owner prints ---


@pytest.mark.parametrize(
    ("url", "self_signed", "has_pin"),
    [
        ("https://a.example:8000", True, True),
        ("https://a.example", False, False),
        ("http://a.example", True, False),
    ],
)
def test_the_invite_of_a_url_pins_a_certificate_of_its_own(
    tmp_path, url: str, self_signed: bool, has_pin: bool
) -> None:
    pytest.importorskip("cryptography")
    files = TlsFiles(tmp_path / "c.pem", tmp_path / "k.pem", self_signed=True)
    files.ssl_server([])
    service = Service.__new__(Service)
    service.options = ServerOptions(public_url=url, tls=replace(files, self_signed=self_signed))
    service._saved = type("Saved", (), {"job": bytes(16), "secret": bytes(32)})()  # type: ignore[assignment]
    assert (service.invite.pin is not None) == has_pin


def test_other_machines_need_tls_or_a_word(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"parameter server at 0\.0\.0\.0:0 is reachable .* without TLS"):
        ServerOptions(listen="0.0.0.0:0")
    ServerOptions(listen="0.0.0.0:0", allow_insecure=True)
    ServerOptions(listen="0.0.0.0:0", tls=TlsFiles(tmp_path / "c", tmp_path / "k"))
    ServerOptions(listen="[::1]:0")
    token = TlsFiles(token_file=tmp_path / "t")
    named = ServerOptions(listen=f"softs://0.0.0.0:0/digits?token_file={tmp_path}/t")
    assert (named.listen, named.tls) == ("0.0.0.0:0", token)
    with pytest.raises(ConfigError, match="public_url is for an invite; with a token file"):
        ServerOptions(public_url="https://a.example", tls=token)
    # A server refuses a CA alone when it reads it.
    assert ServerOptions(tls=TlsFiles(ca=tmp_path / "ca")).tls is not None
