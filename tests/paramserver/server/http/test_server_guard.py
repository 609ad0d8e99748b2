"""Peers that are slow, long-winded, or no workers at all."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import select
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from raw_client import job_of, large_model

from softs_fast.paramserver.server import service as service_module
from softs_fast.paramserver.server.http import connection as connection_module
from softs_fast.paramserver.server.http.budget import Budget
from softs_fast.paramserver.server.http.request import Refusal
from softs_fast.paramserver.server.http.sessions import Sessions
from softs_fast.paramserver.server.options import ServerOptions
from softs_fast.paramserver.server.server import Server
from softs_fast.paramserver.server.service import Service
from softs_fast.paramserver.wire import answers


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Have deadlines of so many seconds, which only those that are to be cut must miss."""

    with pytest.MonkeyPatch.context() as patch:
        for name in ("_HEAD_S", "_BODY_S", "_ANSWER_S"):
            patch.setattr(connection_module, name, seconds)
        yield


@pytest.fixture
def short() -> Iterator[None]:
    """Deadlines of a tenth of a second."""
    with limited(0.1):
        yield


def connected(server: Server) -> socket.socket:
    parts = urlsplit(server.invite.url)
    return socket.create_connection((parts.hostname, parts.port), timeout=45)


def read_to_end(peer: socket.socket) -> None:
    """Wait until the server has closed the connection; the time-out of the socket is the watchdog."""
    with contextlib.suppress(ConnectionResetError):
        while peer.recv(1000):
            pass


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("sent", [b"", b"GET /v1/model HT", b"GET / HTTP/1.1\r\nHost: x\r\nX-A: b\r\n"])
def test_a_head_that_does_not_end_is_cut(serve, sent: bytes) -> None:
    with connected(serve()) as peer:
        peer.sendall(sent)
        read_to_end(peer)


@pytest.mark.usefixtures("short")
def test_a_head_in_drops_is_cut(serve) -> None:
    """Each byte is no reason to wait longer."""
    drops = itertools.repeat(b"G")
    with connected(serve()) as peer, contextlib.suppress(ConnectionError):
        for drop in drops:
            peer.sendall(drop)
            # Closed by the server: readable.
            if select.select([peer], [], [], 0.01)[0]:
                break


def test_a_body_that_stops_is_cut(serve, enter) -> None:
    job = job_of(large_model)
    server = serve(job)
    client = enter(server, job)
    frame = client.frame()
    client.push(frame, whole=False)
    headers, _ = client.signed("PUT", f"{answers.PUSH}/1.0", frame.header.encode(), 0)
    lines = [f"PUT {answers.PUSH}/1.0 HTTP/1.1", "Host: x", "Content-Length: 300000"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    with limited(0.5), connected(server) as peer:
        peer.sendall("\r\n".join([*lines, "", ""]).encode() + bytes(frame.payload[:5000]))
        read_to_end(peer)
    assert client.ask("HEAD", f"{answers.PUSH}/1.0").headers["upload-offset"] == "5000"


def test_a_long_poll_is_not_cut(serve, enter) -> None:
    server = serve(world_size=2, quorum=2)
    client = enter(server)
    client.push(client.frame())
    with limited(0.5):
        assert client.pull("1.0", 1.0).status == 204


def test_a_long_head_is_cut(serve) -> None:
    with connected(serve()) as peer:
        peer.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-A: " + b"b" * 100_000)
        try:
            answer = peer.recv(1000)
        except ConnectionResetError:
            return
        assert answer.startswith(b"HTTP/1.1 400")


def test_the_budget_fills_again() -> None:
    now = [0.0]
    budget = Budget(lambda: now[0])
    for _ in range(200):
        budget.spend()
    with pytest.raises(Refusal) as refused:
        budget.spend()
    assert refused.value.reply.status == 429
    now[0] = 0.1
    budget.spend()
    budget.spend()
    with pytest.raises(Refusal):
        budget.spend()


def test_the_server_gives_the_counters_of_the_owner() -> None:
    """A program with a clock that is a day ahead must not keep the others out, and a restart must not take an old request."""
    sessions = Sessions(bytes(32), bytes(16), bytes(32))
    first = sessions.owner_n
    taken = [sessions.take(sessions.owner, n) for n in (first, first, first + 900, first - 1, first + 1)]
    assert taken == [True, False, False, False, True]
    again = Sessions(bytes(32), bytes(16), bytes(32))
    assert not again.take(again.owner, first)
    sessions.begin("w", bytes(16))
    assert len(sessions) == 1
    sessions.keep(lambda worker: False)
    assert sessions.find("w") is None


def test_a_server_stays_while_it_sends_the_last_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model may take longer on a slow link than the server lingers for workers that are gone; its page keeps none."""
    monkeypatch.setattr(service_module, "_LONGEST_TIMES", 1000)

    async def main() -> None:
        service = Service.__new__(Service)
        service.options = ServerOptions(linger_s=0.2)
        ended = asyncio.Event()
        ended.set()
        service.driver = SimpleNamespace(ended=ended, failure=None)  # type: ignore[assignment]
        service.run = SimpleNamespace(is_known_by_all=False)  # type: ignore[assignment]
        # The page of the owner always asks for the status.
        service._state = SimpleNamespace(tasks={"a status"})
        service._application = SimpleNamespace(n_sending=1)  # type: ignore[assignment]
        waits = asyncio.create_task(service.wait())
        done, _ = await asyncio.wait([waits], timeout=0.5)
        assert not done
        service._application.n_sending = 0
        await asyncio.wait_for(waits, 45.0)

    asyncio.run(main())


# --- TLS, and the owner ---


def test_the_page_is_static_and_strict(serve, enter) -> None:
    client = enter(serve())
    for path, content_type in (
        ("/", "text/html"),
        ("/page.js", "text/javascript"),
        ("/page.css", "text/css"),
    ):
        status, headers, body = client.raw("GET", path)
        assert status == 200
        assert headers["content-type"].startswith(content_type)
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert "unsafe" not in headers["content-security-policy"]
        if path == "/":
            assert b"<script src=" in body
            assert b"<script>" not in body
            assert b" on" not in body.replace(b" on ", b"")
    assert client.raw("GET", "/../secret")[0] == 404
    assert client.raw("GET", "/healthz")[::2] == (200, b"ok\n")


def test_metrics(serve, enter) -> None:
    client = enter(serve())
    client.pull()
    client.push(client.frame(loss=0.25))
    client.pull("1.0", 20.0)
    text = client.raw("GET", "/metrics")[2].decode()
    for line in (
        "softs_fast_paramserver_version 1",
        "softs_fast_paramserver_loss 0.25",
        'softs_fast_paramserver_workers{state="active"} 1.0',
        "softs_fast_paramserver_file_failing 0.0",
    ):
        assert line in text.splitlines()
