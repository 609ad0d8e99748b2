"""Pages over HTTP: connections without a request keep no other one waiting, and there are only so many."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import urllib.request

import pytest
from waiting import WATCHDOG_S, n_sleeps

from softs_fast.monitoring import Page, PageServer, text_server


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> PageServer:
    """Return a server that closes no connection for its slowness."""
    monkeypatch.setattr(text_server, "_TIMEOUT_S", 10 * WATCHDOG_S)
    return PageServer({"/": lambda: Page("here")}, "127.0.0.1:0")


def connect(server: PageServer) -> socket.socket:
    host, port = server.url.split("/")[2].split(":")
    return socket.create_connection((host, int(port)))


def test_a_connection_without_a_request_keeps_no_other_one_waiting(server: PageServer) -> None:
    with server, connect(server), urllib.request.urlopen(server.url, timeout=WATCHDOG_S) as answer:
        assert answer.read() == b"here"


def test_a_connection_too_many_waits_for_the_end_of_another_one(
    server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_server, "_MAX_CONNECTIONS", 2)
    with server, connect(server), connect(server) as second, connect(server) as third:
        third.sendall(b"GET / HTTP/1.0\r\n\r\n")
        third.settimeout(0.2)
        with pytest.raises(TimeoutError):
            third.recv(1)
        second.close()
        third.settimeout(WATCHDOG_S)
        assert third.recv(1000)


def test_a_server_sleeps_until_it_is_asked(server: PageServer) -> None:
    counts = []
    with server:
        [thread] = [one for one in threading.enumerate() if one.name == "softs-metrics"]
        assert thread.native_id is not None
        for _ in range(3):
            time.sleep(0.6)
            counts.append(n_sleeps(thread.native_id))
    assert len(set(counts)) == 1


def test_a_close_that_a_signal_has_ended_can_be_called_again() -> None:
    begun, answers = threading.Event(), threading.Event()

    def page() -> Page:
        begun.set()
        answers.wait(WATCHDOG_S)
        return Page("late")

    def end(*_: object) -> None:
        raise InterruptedError

    before = signal.signal(signal.SIGUSR1, end)
    server = PageServer({"/": page}, "127.0.0.1:0")
    server.start()
    with socket.create_connection(("127.0.0.1", int(server.url.split(":")[2][:-1]))) as asked:
        asked.sendall(b"GET / HTTP/1.0\r\n\r\n")
        # From here on `close` waits for the answer.
        assert begun.wait(WATCHDOG_S)
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1))

        def close() -> None:
            timer.start()
            server.close()

        with pytest.raises(InterruptedError):
            close()
        answers.set()
        server.close()
        timer.join()
    signal.signal(signal.SIGUSR1, before)


def test_a_fork_that_closes_a_server_leaves_it_to_its_process(server: PageServer) -> None:
    with server:
        child = os.fork()
        if child == 0:
            server.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        with urllib.request.urlopen(server.url, timeout=WATCHDOG_S) as answer:
            assert answer.status == 200
