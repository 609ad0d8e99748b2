"""Which workers join: numbers, tokens, junk; and what is said of those that do not."""

from __future__ import annotations

import logging
import os
import socket
import threading
from contextlib import closing, suppress
from pathlib import Path

import pytest
from stream_peers import TOKEN, both, events, joined, opened, refusal, say, texts
from waiting import WATCHDOG_S

from softs_fast.dataflow.link.events import Joined, Left
from softs_fast.dataflow.link.stream import MasterStream, StreamLimits, WorkerStream, join, listen_at
from softs_fast.errors import ConfigError, EndpointInUse, PeerLost
from softs_fast.trust import new_token


def await_warning(words: str, master: MasterStream, caplog: pytest.LogCaptureFixture) -> None:
    """Have the master log what it has to say until these words are there: a worker that refuses may be the first to know."""
    with caplog.at_level(logging.WARNING, "softs_fast.dataflow.link.stream"):
        while words not in caplog.text:
            master.receive(0.1)


def test_two_workers_cannot_have_one_number(caplog: pytest.LogCaptureFixture) -> None:
    with opened() as master:
        with joined(master, 3):
            words = f"worker 3 is joined already: process {os.getpid()}"
            assert words in refusal(master.endpoint, 3)
            await_warning(words, master, caplog)
        # The number is free when the first one has left.
        while not any(isinstance(event, Left) for event in events(master)):
            pass
        with closing(WorkerStream(join(master.endpoint, TOKEN, 3))):
            assert events(master) == [Joined(3, os.getpid(), socket.gethostname())]


def test_a_refusal_is_in_words_on_both_sides(caplog: pytest.LogCaptureFixture) -> None:
    words = "the token of the master is not that of this worker"
    with opened() as master:
        text = refusal(master.endpoint, 3, new_token())
        assert text.startswith(f"HelloError: worker 3 did not join the master at {master.endpoint}: ")
        assert words in text
        await_warning(words, master, caplog)


@pytest.mark.parametrize("listen", ["ipc://*", "tcp://127.0.0.1:0", "tcp://0.0.0.0:0"])
def test_tokens_are_proved_by_both(listen: str) -> None:
    token = new_token()
    with closing(MasterStream(listen_at(listen, token))) as master:
        endpoint = master.endpoint.replace("0.0.0.0", "127.0.0.1")
        with closing(WorkerStream(join(endpoint, token, 0))) as worker:
            assert isinstance(events(master)[0], Joined)
            worker.send(say("x"))
            assert texts(master, 1) == ["x"]


def test_a_master_that_is_not_there() -> None:
    with pytest.raises(PeerLost, match="no master at ipc:///nowhere: no such file"):
        join("ipc:///nowhere", TOKEN, 0)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(PeerLost, match=r"no master at tcp://127\.0\.0\.1"):
        join(f"tcp://127.0.0.1:{port}", TOKEN, 0)


def test_a_listener_that_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        text = refusal(endpoint, 0, limits=StreamLimits(handshake_s=0.1))
    # Nothing was refused: the worker may ask again.
    assert text == f"PeerLost: no master at {endpoint}: no answer within 0.1 s"


@pytest.mark.parametrize(
    ("junk", "words"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "HelloError: worker 0 did not join the master at {}: a frame of 1347703880 bytes, and 1024 may come here",
        ),
        (b"\0\0\0\0\x04", "a message of kind 4 is out of turn"),
        (b"\0\0\0\0\xff", "a message of kind 255 is out of turn"),
        (b"", "PeerLost: no master at {}: it ended the connection without a reason"),
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
        endpoint = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        text = refusal(endpoint, 0)
        thread.join(WATCHDOG_S)
        assert words.format(endpoint) in text


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
    with both() as (master, worker):
        with socket.socket(socket.AF_UNIX) as intruder:
            intruder.settimeout(WATCHDOG_S)
            intruder.connect(master.endpoint.removeprefix("ipc://"))
            intruder.sendall(junk)
            intruder.shutdown(socket.SHUT_WR)
            while intruder.recv(1024):
                pass
        await_warning(words, master, caplog)
        worker.send(say("still here"))
        assert texts(master, 1) == ["still here"]


def test_an_address_that_is_refused_again_and_again_has_one_line(caplog: pytest.LogCaptureFixture) -> None:
    n = 40
    with opened("tcp://127.0.0.1:0") as master:
        port = int(master.endpoint.rpartition(":")[2])
        for i in range(n):
            with socket.create_connection(("127.0.0.1", port), WATCHDOG_S) as stranger:
                # The reason is what the stranger likes it to be.
                stranger.sendall(bytes([i, 255, 0, 0, 1]))
                while stranger.recv(1024):
                    pass
        for _ in range(3):
            master.receive(0.01)
    first, last = [one.getMessage() for one in caplog.records]
    assert "did not join: a frame of 65280 bytes" in first
    assert first in last
    assert f"({n - 1} more in the last" in last


def test_a_connection_without_a_handshake_ends(caplog: pytest.LogCaptureFixture) -> None:
    with opened(limits=StreamLimits(handshake_s=0.05)) as master:
        with socket.socket(socket.AF_UNIX) as silent:
            silent.settimeout(WATCHDOG_S)
            silent.connect(master.endpoint.removeprefix("ipc://"))
            assert silent.recv(1024) == b""
        await_warning("did not join: no handshake within 0.05 s", master, caplog)


def test_an_endpoint_has_one_master(short_path: Path) -> None:
    endpoint = f"ipc://{short_path}/flow"
    with opened(endpoint), pytest.raises(EndpointInUse, match="is in use"):
        listen_at(endpoint, TOKEN)
    with opened(endpoint) as again:
        assert again.endpoint == endpoint


@pytest.mark.parametrize("token", ["", "short", "x" * 513, "twenty two characters\n"])
def test_a_token_has_enough_characters(token: str) -> None:
    with pytest.raises(ConfigError, match="22 to 512 visible ASCII characters") as raised:
        listen_at("ipc://*", token)
    assert not token or repr(token) not in str(raised.value)
