"""Which workers join: numbers, incarnations, tokens, junk; and the files of tokens."""

from __future__ import annotations

import logging
import os
import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from control_peers import events, refusal
from waiting import WATCHDOG_S

from softs_fast.dataflow.link.control import (
    ControlClient,
    ControlLimits,
    ControlServer,
    Joined,
    Left,
)
from softs_fast.errors import ConfigError, EndpointInUse, PeerLost
from softs_fast.trust import new_token

ANY_HOST = "tcp://0.0.0.0:0"


def await_warning(words: str, server: ControlServer, caplog: pytest.LogCaptureFixture) -> None:
    """Have the server log what it has to say until these words are there: a worker that refuses may be the first to know."""
    with caplog.at_level(logging.WARNING, "softs_fast.dataflow.link.control.server"):
        while words not in caplog.text:
            server.receive(0.1)


def test_two_workers_cannot_have_one_number(caplog: pytest.LogCaptureFixture) -> None:
    with ControlServer() as server, ControlClient(server.endpoint, 3) as first:
        words = f"worker 3 is joined already: process {os.getpid()}"
        assert words in refusal(server.endpoint, 3)
        await_warning(words, server, caplog)
        first.close()
        # The number is free when the first one has left.
        while not any(isinstance(event, Left) for event in events(server)):
            pass
        with ControlClient(server.endpoint, 3):
            assert events(server) == [Joined(3, os.getpid(), socket.gethostname(), 1)]


@pytest.mark.parametrize(
    ("master", "worker", "words"),
    [
        (
            {"incarnation": 5},
            {"incarnation": 6},
            "the master is of incarnation 5, older than 6, which this worker knows",
        ),
        ({"token": "a" * 32}, {}, "this master asks for a token, and the worker has none"),
    ],
)
def test_a_refusal_is_in_words_on_both_sides(
    master: dict[str, object], worker: dict[str, object], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with ControlServer(**master) as server:  # type: ignore[arg-type]
        text = refusal(server.endpoint, 3, **worker)
        assert text.startswith(f"HelloError: worker 3 did not join the master at {server.endpoint}: ")
        assert words in text
        await_warning(words, server, caplog)


def test_workers_of_an_older_incarnation_may_be_welcome() -> None:
    with (
        ControlServer(incarnation=5, oldest=2) as server,
        ControlClient(server.endpoint, 0, incarnation=2) as client,
    ):
        assert client.incarnation == 5
        (joined,) = events(server)
        assert isinstance(joined, Joined)
        assert joined.incarnation == 2
        assert "takes those from 2 on" in refusal(server.endpoint, 1, incarnation=1)


@pytest.mark.parametrize("listen", ["ipc://*", "tcp://127.0.0.1:0"])
def test_tokens_are_proved_by_both(listen: str) -> None:
    token = new_token()
    with (
        ControlServer(listen=listen, token=token) as server,
        ControlClient(server.endpoint, 0, token=token) as client,
    ):
        events(server)
        client.send(b"x")
        assert len(events(server)) == 1


def test_other_hosts_need_a_token() -> None:
    with pytest.raises(
        ConfigError, match="can be reached from other machines; give master and workers the same token"
    ):
        ControlServer(listen=ANY_HOST)
    with pytest.raises(ConfigError, match="give master and workers the same token"):
        ControlClient("tcp://192.0.2.1:9", 0)
    token = new_token()
    with ControlServer(listen=ANY_HOST, token=token) as server:
        port = server.endpoint.rpartition(":")[2]
        with ControlClient(f"tcp://127.0.0.1:{port}", 0, token=token):
            assert isinstance(events(server)[0], Joined)


def test_a_master_that_is_not_there() -> None:
    with pytest.raises(PeerLost, match="no master at ipc:///nowhere: no such file"):
        ControlClient("ipc:///nowhere", 0)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(PeerLost, match=r"no master at tcp://127\.0\.0\.1"):
        ControlClient(f"tcp://127.0.0.1:{port}", 0)


def test_a_listener_that_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        assert "no answer within 0." in refusal(endpoint, 0, limits=ControlLimits(handshake_s=0.1))


@pytest.mark.parametrize(
    ("junk", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "a frame of 1347703880 bytes, and 1024 may come here"),
        (b"\0\0\0\0\x04", "a message of kind 4 is out of turn"),
        (b"\0\0\0\0\xff", "a message of kind 255 is out of turn"),
        (b"", "it ended the connection without a reason"),
    ],
)
def test_a_listener_that_says_junk(junk: bytes, words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(WATCHDOG_S)
                connection.recv(5)
                connection.sendall(junk)
                connection.shutdown(socket.SHUT_WR)
                # Until the worker has ended the connection.
                with suppress(OSError):
                    while connection.recv(1024):
                        pass

        thread = threading.Thread(target=answer)
        thread.start()
        text = refusal(f"tcp://127.0.0.1:{listener.getsockname()[1]}", 0)
        thread.join(WATCHDOG_S)
        assert words in text


@pytest.mark.parametrize(
    ("junk", "words"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "a frame of 542393671 bytes, and 1024 may come here"),
        (b"\x08\0\0\0\x01notFLOW1", "it does not speak the protocol of a flow"),
        (b"\0\0\0\0\x05", "a message of kind 5 is out of turn"),
        (b"", "its connection ended"),
    ],
)
def test_junk_is_refused_and_harms_none(junk: bytes, words: str, caplog: pytest.LogCaptureFixture) -> None:
    with ControlServer() as server, ControlClient(server.endpoint, 0) as client:
        events(server)
        with socket.socket(socket.AF_UNIX) as intruder:
            intruder.settimeout(WATCHDOG_S)
            intruder.connect(server.endpoint.removeprefix("ipc://"))
            intruder.sendall(junk)
            intruder.shutdown(socket.SHUT_WR)
            while intruder.recv(1024):
                pass
        await_warning(words, server, caplog)
        client.send(b"still here")
        assert len(events(server)) == 1


def test_an_address_that_is_refused_again_and_again_has_one_line(caplog: pytest.LogCaptureFixture) -> None:
    n = 40
    with ControlServer(listen="tcp://127.0.0.1:0") as server:
        port = int(server.endpoint.rpartition(":")[2])
        for i in range(n):
            with socket.create_connection(("127.0.0.1", port), WATCHDOG_S) as stranger:
                # The reason is what the stranger likes it to be.
                stranger.sendall(bytes([i, 255, 0, 0, 1]))
                while stranger.recv(1024):
                    pass
        for _ in range(3):
            server.receive(0.01)
    first, last = [one.getMessage() for one in caplog.records]
    assert "did not join: a frame of 65280 bytes" in first
    assert first in last
    assert f"({n - 1} more in the last" in last


def test_a_connection_without_a_handshake_ends(caplog: pytest.LogCaptureFixture) -> None:
    with ControlServer(limits=ControlLimits(handshake_s=0.05)) as server:
        with socket.socket(socket.AF_UNIX) as silent:
            silent.settimeout(WATCHDOG_S)
            silent.connect(server.endpoint.removeprefix("ipc://"))
            assert silent.recv(1024) == b""
        await_warning("did not join: no handshake within 0.05 s", server, caplog)


def test_an_endpoint_has_one_master(short_path: Path) -> None:
    endpoint = f"ipc://{short_path}/flow"
    with ControlServer(listen=endpoint), pytest.raises(EndpointInUse, match="is in use"):
        ControlServer(listen=endpoint)
    with ControlServer(listen=endpoint) as again:
        assert again.endpoint == endpoint


@pytest.mark.parametrize("token", ["", "short", "x" * 513, "twenty two characters\n"])
def test_a_token_has_enough_characters(token: str) -> None:
    with pytest.raises(ConfigError, match="22 to 512 visible ASCII characters") as raised:
        ControlServer(token=token)
    assert not token or repr(token) not in str(raised.value)


@pytest.mark.parametrize(
    "field", ["frame_bytes", "unsent_bytes", "unread_bytes", "workers", "handshake_s", "lost_after_s"]
)
def test_limits_are_checked(field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field} must be"):
        ControlLimits(**{field: 0})
