"""How a worker joins: secrets, certificates, servers that are away, and what ends it at once."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from side_by_side import in_threads
from token_files import token_file

pytest.importorskip("urllib3", reason="needs the extra paramworker")
from fake_server import OPTIONS, Answer, FakeServer, linear

from softs_fast.errors import ConfigError, PeerLost
from softs_fast.paramserver.wire.invite import Invite
from softs_fast.paramserver.wire.manifest import Manifest
from softs_fast.paramserver.wire.messages import Failure, RunConfig, encode
from softs_fast.paramserver.worker.exchanges import Call
from softs_fast.paramserver.worker.options import WorkerOptions
from softs_fast.paramserver.worker.session import Session
from softs_fast.trust import TlsFiles, outage

CONFIG = RunConfig(rounds=3, batch_size=2, push_codec="f32", compression=False)


@contextmanager
def session(invite: Invite, options: WorkerOptions | None = None) -> Iterator[Session]:
    one = Session(invite, Manifest.of(linear()), options or OPTIONS)
    try:
        yield one
    finally:
        one.close()


def test_a_wrong_secret_ends_the_worker_at_once() -> None:
    with FakeServer(linear(), CONFIG) as server:
        wrong = replace(server.invite, secret=bytes(32))
        with session(wrong) as one, pytest.raises(ConfigError, match="does not know the invite") as raised:
            one.join()
        assert "ask for the line that it prints now" in str(raised.value)
        assert server.requests["POST /v1/join"] == 1


def test_nothing_can_be_asked_before_the_join() -> None:
    with FakeServer(linear(), CONFIG) as server, session(server.invite) as one:
        with pytest.raises(ConfigError, match="has not joined yet"):
            one.run(Call("POST", "/v1/pause", b"{}"))
        with pytest.raises(ConfigError, match="has not joined yet"):
            _ = one.joined
        assert one.join().worker_id == "w0"
        assert one.join().worker_id == "w0"
        assert one.traffic.joins == 2


def test_the_rejoin_timeout_ends_with_what_was_tried() -> None:
    invite = Invite("http://127.0.0.1:1", bytes(16), bytes(32))
    with session(invite, WorkerOptions(rejoin_timeout_s=0.3)) as one, pytest.raises(PeerLost) as raised:
        one.join()
    assert "attempts; the last: http://127.0.0.1:1: the connection was lost: " in str(raised.value)
    assert "object at" not in str(raised.value)


def test_each_host_that_was_tried_is_named_with_its_reason(tmp_path: Path) -> None:
    place = f"softs://127.0.0.1:1,no-such-host.invalid:2?token_file={token_file(tmp_path / 'own', 'a')}"
    options = WorkerOptions(rejoin_timeout_s=1.0)
    with session(Invite.parse(place), options) as one, pytest.raises(PeerLost) as raised:
        one.join()
    text = str(raised.value)
    assert "the last: https://127.0.0.1:1: the connection was lost: " in text
    assert "; https://no-such-host.invalid:2: the name of the host is unknown: " in text


def test_a_name_that_is_unknown_is_named() -> None:
    invite = Invite("http://no-such-host.invalid", bytes(16), bytes(32))
    with (
        session(invite, WorkerOptions(rejoin_timeout_s=0.3)) as one,
        pytest.raises(PeerLost, match="the name of the host is unknown"),
    ):
        one.join()


def test_a_session_that_is_closed_waits_no_longer() -> None:
    invite = Invite("http://no-such-host.invalid", bytes(16), bytes(32))
    with session(invite) as one:
        threading.Timer(0.2, one.close).start()
        with pytest.raises(PeerLost, match="the session was closed"):
            one.join()


def test_a_server_that_is_full_or_busy_is_asked_again() -> None:
    n = 0

    def before(method: str, path: str) -> Answer | None:
        nonlocal n
        n += 1
        if n > 4:
            return None
        return Answer(503 if n % 2 else 429, encode(Failure("full", "no room")))

    with FakeServer(linear(), CONFIG) as server, session(server.invite) as one:
        server.before = before
        one.join()
        n = 0
        one.run(Call("POST", "/v1/pause", b"{}"))
        assert one.traffic.failures == 8


def test_a_heartbeat_tries_once_and_joins_again() -> None:
    with FakeServer(linear(), CONFIG) as server, session(server.invite) as one:
        one.join()
        server.restart()
        one.attempt(Call("POST", "/v1/heartbeat", b"{}"))
        assert one.traffic.joins == 2
        server.before = lambda method, path: Answer(503, encode(Failure("full", "no room")))
        with pytest.raises(PeerLost, match="no room"):
            one.attempt(Call("POST", "/v1/heartbeat", b"{}"))
    with session(server.invite) as one, pytest.raises(ConfigError):
        one.attempt(Call("POST", "/v1/heartbeat", b"{}"))


def test_threads_that_lose_their_session_at_once_join_once() -> None:
    with FakeServer(linear(), CONFIG) as server, session(server.invite) as one:
        one.join()
        server.restart()
        in_threads(one.run, [Call("POST", "/v1/heartbeat", b"{}")] * 6)
        assert one.traffic.joins == 2


def test_people_are_told_once_why_the_server_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # With the first attempt: the second one may come when the time of all is over.
    monkeypatch.setattr(outage, "_WARN_S", 0.0)
    invite = Invite("http://127.0.0.1:1", bytes(16), bytes(32))
    with session(invite, WorkerOptions("test", rejoin_timeout_s=0.5)) as one, pytest.raises(PeerLost):
        one.join()
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 1
    assert "Connection refused" in told[0]


def test_a_new_url_is_asked_for_and_must_be_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After a minute of pages of another server a person is asked; what is no URL changes nothing."""
    from lying_proxy import Fault, LyingProxy

    from softs_fast.paramserver.worker import retries

    monkeypatch.setattr(retries, "_MOVED_S", 0.05)
    given = ["nonsense", None]
    with FakeServer(linear(), CONFIG) as server, LyingProxy(server.port, lambda *_: Fault(page=404)) as moved:
        other = Invite(server.invite.url, server.job, bytes(range(32)))
        given += [str(other), server.invite.url]
        options = WorkerOptions("test", 20.0, ask_url=lambda: given.pop(0))
        with session(server.invite.moved(moved.url), options) as one:
            one.join()
            assert one.invite.url == server.invite.url
    assert given == []
    assert "the new URL is not used: 'nonsense' is no URL" in caplog.text
    assert "the new invite is of another job" in caplog.text


def tls(file: Path) -> ssl.SSLContext:
    """TLS of a server with a token file."""
    pytest.importorskip("cryptography", reason="makes certificates")
    return TlsFiles(token_file=file).ssl_server(["http/1.1"])


def test_each_host_is_asked_for_its_own_secret_until_one_lets_the_worker_join(tmp_path: Path) -> None:
    file = token_file(tmp_path / "own", "a")

    def die(method: str, path: str) -> Answer | None:
        raise ConnectionError

    with (
        FakeServer(linear(), CONFIG, context=tls(file)) as first,
        FakeServer(linear(), CONFIG, context=tls(file)) as second,
    ):
        first.before = die
        place = f"softs://127.0.0.1:{first.port},127.0.0.1:{second.port}?token_file={file}"
        with session(Invite.parse(place)) as one:
            one.join()
            assert one.invite.secret == second.secret
            second.restart()
            one.attempt(Call("POST", "/v1/heartbeat", b"{}"))
            assert one.traffic.joins == 2
        assert [server.requests["GET /v1/invite"] for server in (first, second)] == [1, 1]


def test_a_secret_that_a_host_told_before_it_was_replaced_is_asked_for_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = token_file(tmp_path / "own", "a")
    with FakeServer(linear(), CONFIG, context=tls(file)) as server:
        handle = server.handle

        def tell_and_replace(*request: Any) -> tuple[int, dict[str, str], bytes]:
            monkeypatch.undo()
            told = handle(*request)
            server.secret = bytes(32)
            return told

        monkeypatch.setattr(server, "handle", tell_and_replace)
        with session(Invite.parse(f"softs://127.0.0.1:{server.port}?token_file={file}")) as one:
            one.join()
            assert one.invite.secret == bytes(32)
        assert server.requests["GET /v1/invite"] == 2


def test_a_token_that_was_replaced_is_used_when_a_worker_connects_again(tmp_path: Path) -> None:
    own, theirs = (token_file(tmp_path / name, "a") for name in ("own", "theirs"))
    with (
        FakeServer(linear(), CONFIG, context=tls(theirs)) as server,
        session(Invite.parse(f"softs://127.0.0.1:{server.port}?token_file={own}")) as one,
    ):
        one.join()
        for file in (own, theirs):
            token_file(file, "b")
        server.restart()
        one.run(Call("POST", "/v1/heartbeat", b"{}"))
        assert one.traffic.joins == 2


def test_a_file_with_the_url_beside_a_place_is_refused(tmp_path: Path) -> None:
    invite = Invite.parse(f"softs://a?token_file={tmp_path}/t")
    with pytest.raises(ConfigError, match="a file with the server's URL is for an invite; name several"):
        Session(invite, Manifest.of(linear()), WorkerOptions(url_file=tmp_path / "url"))
