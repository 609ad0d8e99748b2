"""Which workers join: numbers, certificates, junk; and what is said of those that do not."""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
from contextlib import closing, suppress
from pathlib import Path

import pytest
from stream_peers import ANY, SHOWN, both, events, joined, opened, refusal, say, texts
from token_files import credentials
from waiting import WATCHDOG_S

from softs_fast.dataflow.link.events import Joined, Left
from softs_fast.dataflow.link.stream import MasterStream, StreamLimits, WorkerStream, join, listen_at
from softs_fast.errors import ConfigError, EndpointInUse, PeerLost
from softs_fast.trust import Der


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
        with closing(WorkerStream(join(master.endpoint, None, 3))):
            assert events(master) == [Joined(3, os.getpid(), socket.gethostname())]


_TLS_AT_PLAIN = "it speaks TLS, and this host does not; give both the same token file"
_REFUSED = "HelloError: worker 3 did not join the master at {}: "
_PLAIN_AT_TLS = "it speaks no TLS; give it the token file of this host"


@pytest.mark.parametrize(
    ("ours", "theirs", "told", "logged"),
    [
        (
            SHOWN,
            credentials("b"),
            f"{_REFUSED}it does not have the token of this host; give both the same token file",
            "it does not accept the certificate of this host (UnknownCA); give both the same token file",
        ),
        (SHOWN, None, f"{_REFUSED}{_TLS_AT_PLAIN}", _PLAIN_AT_TLS),
        (
            None,
            SHOWN,
            f"{_REFUSED}{_PLAIN_AT_TLS}",
            _TLS_AT_PLAIN,
        ),
    ],
)
def test_a_refusal_is_in_words_on_both_sides(
    ours: Der | None, theirs: Der | None, told: str, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(ANY, ours) as master:
        text = refusal(master.endpoint, 3, theirs)
        assert text.startswith(told.format(master.endpoint))
        await_warning(f"did not join: {logged}", master, caplog)


def test_a_worker_that_trusts_a_master_and_has_another_token_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (key, chain, _), (_, _, roots) = credentials("b"), SHOWN
    with opened(ANY, SHOWN) as master:
        text = refusal(master.endpoint, 3, (key, chain, roots))
        assert "it does not accept the certificate of this host (UnknownCA)" in text
        await_warning("did not join: it does not have the token of this host", master, caplog)


@pytest.mark.parametrize("theirs", [SHOWN, credentials("b", "a"), credentials("a")])
@pytest.mark.parametrize("listen", ["ipc://*", ANY, "tcp://0.0.0.0:0"])
def test_holders_of_a_token_join(listen: str, theirs: Der) -> None:
    with opened(listen, SHOWN) as master:
        endpoint = master.endpoint.replace("0.0.0.0", "127.0.0.1")
        with closing(WorkerStream(join(endpoint, theirs, 0))) as worker:
            assert isinstance(events(master)[0], Joined)
            worker.send(say("x"))
            assert texts(master, 1) == ["x"]


def test_a_master_of_other_hosts_has_credentials() -> None:
    with pytest.raises(ConfigError, match="reached from other machines; give both ends the same token"):
        listen_at("tcp://0.0.0.0:0", None)
    with pytest.raises(ConfigError, match="the certificate of this host cannot be used"):
        listen_at("ipc://*", (b"", [], []))


def test_nothing_that_is_said_can_be_read_on_the_way() -> None:
    with opened(ANY, SHOWN) as master, socket.create_server(("127.0.0.1", 0)) as between:
        seen: list[bytes] = []
        there = ("127.0.0.1", int(master.endpoint.rpartition(":")[2]))
        thread = threading.Thread(target=passes_on, args=(between, there, seen))
        thread.start()
        endpoint = f"tcp://127.0.0.1:{between.getsockname()[1]}"
        with closing(WorkerStream(join(endpoint, SHOWN, 0))) as worker:
            assert isinstance(events(master)[0], Joined)
            worker.send(say("a secret"))
            assert texts(master, 1) == ["a secret"]
        thread.join(WATCHDOG_S)
        assert seen
        assert all(words not in b"".join(seen) for words in (b"SOFTFLOW", b"secret"))


def passes_on(between: socket.socket, there: tuple[str, int], seen: list[bytes]) -> None:
    """Be a network between two ends, until one of them closes."""
    here, _ = between.accept()
    with here, socket.create_connection(there, WATCHDOG_S) as other:
        ways = {here: other, other: here}
        while True:
            for one in select.select(list(ways), [], [], WATCHDOG_S)[0]:
                data = one.recv(1 << 16)
                if not data:
                    return
                seen.append(data)
                ways[one].sendall(data)


def test_a_master_that_is_not_there() -> None:
    with pytest.raises(PeerLost, match="no master at ipc:///nowhere: no such file"):
        join("ipc:///nowhere", None, 0)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(PeerLost, match=r"no master at tcp://127\.0\.0\.1"):
        join(f"tcp://127.0.0.1:{port}", None, 0)


@pytest.mark.parametrize("shown", [None, SHOWN])
def test_a_listener_that_says_nothing(shown: Der | None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        text = refusal(endpoint, 0, shown, limits=StreamLimits(handshake_s=0.1))
    # Nothing was refused: the worker may ask again.
    assert text == f"PeerLost: no master at {endpoint}: no answer within 0.1 s"


@pytest.mark.parametrize(
    ("shown", "junk", "words"),
    [
        (
            None,
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "HelloError: worker 0 did not join the master at {}: a frame of 1347703880 bytes, and 1024 may come here",
        ),
        (None, b"\0\0\0\0\x04", "a malformed WELCOME"),
        (None, b"\0\0\0\0\x05", "a message of kind 5 is out of turn"),
        (None, b"\0\0\0\0\xff", "a message of kind 255 is out of turn"),
        (None, b"", "PeerLost: no master at {}: it ended the connection without a reason"),
        (
            SHOWN,
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            f"HelloError: worker 0 did not join the master at {{}}: {_PLAIN_AT_TLS}",
        ),
        (SHOWN, b"\x16\x03\x03\0\x04\xff\0\0\0", "it breaks TLS"),
        (SHOWN, b"", "PeerLost: no master at {}: it ended the connection during the TLS handshake"),
    ],
)
def test_a_listener_that_says_junk(shown: Der | None, junk: bytes, words: str) -> None:
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
        text = refusal(endpoint, 0, shown)
        thread.join(WATCHDOG_S)
        assert words.format(endpoint) in text


@pytest.mark.parametrize(
    ("shown", "junk", "words"),
    [
        (None, b"GET / HTTP/1.1\r\n\r\n", "a frame of 542393671 bytes, and 1024 may come here"),
        (None, b"\x08\0\0\0\x01notFLOW1", "it does not speak the protocol of a flow"),
        (None, b"\0\0\0\0\x05", "a message of kind 5 is out of turn"),
        (None, b"", "its connection ended"),
        (SHOWN, b"GET / HTTP/1.1\r\n\r\n", _PLAIN_AT_TLS),
        (SHOWN, 4 * (b"\x16\x03\x01\x10\0" + bytes(4096)), "it breaks TLS"),
        (SHOWN, b"\x16\x03\x01\0", "it ended the connection during the TLS handshake"),
        (SHOWN, b"", "it ended the connection during the TLS handshake"),
    ],
)
def test_junk_is_refused_and_harms_none(
    shown: Der | None, junk: bytes, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with both(credentials=shown) as (master, worker):
        with socket.socket(socket.AF_UNIX) as intruder:
            intruder.settimeout(WATCHDOG_S)
            intruder.connect(master.endpoint.removeprefix("ipc://"))
            intruder.sendall(junk)
            intruder.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):  # it is ended before all is read
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


@pytest.mark.parametrize("shown", [None, SHOWN])
def test_a_connection_without_a_handshake_ends(shown: Der | None, caplog: pytest.LogCaptureFixture) -> None:
    with opened(credentials=shown, limits=StreamLimits(handshake_s=0.05)) as master:
        with socket.socket(socket.AF_UNIX) as silent:
            silent.settimeout(WATCHDOG_S)
            silent.connect(master.endpoint.removeprefix("ipc://"))
            assert silent.recv(1024) == b""
        await_warning("did not join: no handshake within 0.05 s", master, caplog)


def test_an_endpoint_has_one_master(short_path: Path) -> None:
    endpoint = f"ipc://{short_path}/flow"
    with opened(endpoint), pytest.raises(EndpointInUse, match="is in use"):
        listen_at(endpoint, None)
    with opened(endpoint) as again:
        assert again.endpoint == endpoint
