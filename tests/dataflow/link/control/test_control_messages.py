"""Messages, questions and limits between a master and its workers, in real processes and in one."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from control_peers import departure, events, messages, running
from waiting import WATCHDOG_S, eventually

from softs_fast.dataflow.link.control import (
    ControlClient,
    ControlLimits,
    ControlServer,
    Ended,
    Joined,
    Left,
    Received,
)
from softs_fast.errors import ConfigError, PeerBusy, PeerLost, PeerTimeout


def flood(send: Callable[[bytes], None]) -> tuple[int, PeerBusy]:
    """Send pieces of 64 KiB until one is refused; how many were taken, and the refusal."""
    for number in range(1000):
        try:
            send(bytes([number % 256]) * (1 << 16))
        except PeerBusy as error:
            return number, error
    raise AssertionError("1000 pieces were taken")


def test_ten_thousand_messages_keep_their_order_both_ways() -> None:
    with ControlServer() as server, ControlClient(server.endpoint, 0) as client:
        (joined,) = events(server)
        assert joined == Joined(0, os.getpid(), os.uname().nodename, 1)
        numbers = [b"%d" % number for number in range(10_000)]
        received: list[object] = []

        def read() -> None:
            while len(received) < len(numbers):
                received.extend(client.receive(WATCHDOG_S))

        reader = threading.Thread(target=read)
        reader.start()
        for number in numbers:
            server.send(0, number)
            client.send(number)
        assert messages(server, len(numbers)) == numbers
        reader.join(WATCHDOG_S)
        assert received == numbers


def test_several_workers_answer_and_leave() -> None:
    with ControlServer() as server, running(server, 0, 1, 2) as processes:
        for worker in processes:
            server.send(worker, b"echo %d" % worker)
        assert sorted(messages(server, 3)) == [b"0", b"1", b"2"]
        server.send(1, b"leave")
        assert departure(server) == Left(1, "this worker was closed")
        with pytest.raises(PeerLost, match="worker 1 is not connected: it has not joined, or it has left"):
            server.send(1, b"echo")
        server.send(0, b"burst 1000")
        assert messages(server, 1000) == [b"%d" % number for number in range(1000)]


def test_a_question_is_answered_while_python_holds_the_gil() -> None:
    with ControlServer() as server, running(server, 0) as processes:
        # Longer than the watchdog of any wait: only a thread without the GIL can answer.
        server.send(0, b"hold 600")
        assert messages(server, 1) == [b"holding"]
        published = server.ask_with_age(0, "spec", WATCHDOG_S)
        assert json.loads(published.value) == {"pid": processes[0].pid}
        assert published.age_s >= 0
        assert json.loads(server.ask(0, "spec", WATCHDOG_S)) == {"pid": processes[0].pid}


def test_what_is_published_has_an_age_and_is_replaced() -> None:
    with ControlServer() as server, ControlClient(server.endpoint, 0) as client:
        events(server)
        with pytest.raises(
            ConfigError, match=r"worker 0 has published nothing as .spec.; it has nothing at all"
        ):
            server.ask(0, "spec", WATCHDOG_S)
        client.publish("spec", b"one")
        client.publish("spec", b"two")
        time.sleep(0.05)
        published = server.ask_with_age(0, "spec", WATCHDOG_S)
        assert published.value == b"two"
        assert published.age_s >= 0.05
        with pytest.raises(ConfigError, match="it has spec"):
            server.ask(0, "model_config", WATCHDOG_S)
        with pytest.raises(ConfigError, match="a name has 1 to 255 bytes"):
            client.publish("", b"")
        with pytest.raises(PeerLost, match="worker 7 is not connected"):
            server.ask(7, "spec", WATCHDOG_S)


def test_a_large_message_passes_and_a_larger_one_is_refused() -> None:
    limits = ControlLimits(frame_bytes=4 << 20)
    with ControlServer(limits=limits) as server, ControlClient(server.endpoint, 0, limits=limits) as client:
        events(server)
        payload = os.urandom(4 << 20)
        client.send(payload)
        assert messages(server, 1) == [payload]
        with pytest.raises(ConfigError, match="4194305 bytes to the master: at most 4194304 fit"):
            client.send(payload + b"x")
        server.send(0, payload)
        assert client.receive(WATCHDOG_S) == [payload]
    # The smaller limit of both ends counts for both.
    with ControlServer() as server, ControlClient(server.endpoint, 0, limits=limits) as client:
        events(server)
        for send in (client.send, lambda payload: server.send(0, payload)):
            with pytest.raises(ConfigError, match="at most 1048576 fit"):
                send(bytes((1 << 20) + 1))


def test_a_worker_that_does_not_receive_gets_no_more_than_its_limit() -> None:
    limits = ControlLimits(unsent_bytes=1 << 20, unread_bytes=1 << 20)
    with ControlServer(limits=limits) as server, ControlClient(server.endpoint, 0, limits=limits) as client:
        events(server)
        sent, error = flood(lambda payload: server.send(0, payload))
        assert re.match(r"worker 0 reads too slowly: \d+ bytes wait for it, 65536 more", str(error))
        # All that was taken arrives, in order, and then there is room again.
        received: list[bytes | Ended] = []
        while len(received) < sent:
            received += client.receive(WATCHDOG_S)
        assert received == [bytes([number % 256]) * (1 << 16) for number in range(sent)]
        server.send(0, b"again")
        assert client.receive(WATCHDOG_S) == [b"again"]


def test_a_master_that_does_not_receive_slows_its_worker_down() -> None:
    limits = ControlLimits(unsent_bytes=1 << 20, unread_bytes=1 << 20)
    with ControlServer(limits=limits) as server, ControlClient(server.endpoint, 0, limits=limits) as client:
        events(server)
        sent, error = flood(client.send)
        assert str(error).startswith("the master reads too slowly")
        found = messages(server, sent)
        assert found == [bytes([number % 256]) * (1 << 16) for number in range(sent)]


def test_receive_ends_with_the_time_and_with_the_connection() -> None:
    server = ControlServer()
    client = ControlClient(server.endpoint, 0)
    assert client.receive(0) == [] == client.receive(0.01)
    events(server)
    assert server.receive(0) == [] == server.receive(0.01)
    server.send(0, b"last")
    server.close()
    server.close()
    received: list[bytes | Ended] = []
    while not received or not isinstance(received[-1], Ended):
        received += client.receive(WATCHDOG_S)
    assert received == [b"last", Ended("the master has closed")]
    with pytest.raises(PeerLost, match="has ended: the master has closed"):
        client.receive(0)
    with pytest.raises(PeerLost, match="the master is not connected: the master has closed"):
        client.send(b"more")
    client.close()
    client.close()
    with suppress(PeerLost):
        assert isinstance(server.receive(0)[0], Left)
    with pytest.raises(PeerLost, match="this master was closed"):
        server.receive(0)


def test_closing_writes_what_was_sent() -> None:
    with ControlServer() as server:
        client = ControlClient(server.endpoint, 0)
        client.send(b"last")
        client.close()
        found = []
        while not found or not isinstance(found[-1], Left):
            found += events(server)
        assert found[1:] == [Received(0, b"last"), Left(0, "this worker was closed")]


def test_a_server_without_workers_leaves_nothing(tmp_path: Path) -> None:
    with ControlServer() as server:
        socket = Path(server.endpoint.removeprefix("ipc://"))
        assert socket.parent.stat().st_mode & 0o777 == 0o700
    assert not socket.parent.exists()


def test_idle_threads_do_not_run() -> None:
    with ControlServer() as server, ControlClient(server.endpoint, 0) as client:
        events(server)
        server.send(0, b"x")
        client.receive(WATCHDOG_S)

        def switches() -> dict[str, str]:
            found = {}
            for task in Path("/proc/self/task").iterdir():
                with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                    if (task / "comm").read_text() == "softs-flow\n":
                        lines = (task / "status").read_text().splitlines()
                        found[task.name] = next(line for line in lines if line.startswith("voluntary"))
            return found

        def are_at_rest() -> bool:
            # On a busy machine a thread may be on its way to its first wait.
            before = switches()
            time.sleep(0.3)
            return switches() == before

        # The kernel lists a thread for a moment after it was joined.
        eventually(lambda: len(switches()) == 2, switches)
        eventually(are_at_rest, "threads that do not run")


def test_a_question_to_a_stopped_worker_has_its_deadline() -> None:
    with ControlServer() as server, running(server, 0, 1) as processes:
        pid = processes[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        eventually(lambda: Path(f"/proc/{pid}/stat").read_text().split()[2] == "T", "stopped")
        with pytest.raises(PeerTimeout, match=r"worker 0 did not answer 'spec' within 0\.050 s"):
            server.ask(0, "spec", 0.05)
        # Neither it nor what waits for it holds up another one.
        _, error = flood(lambda payload: server.send(0, payload * 16))
        assert str(error).startswith("worker 0 reads too slowly")
        server.send(1, b"echo here")
        assert messages(server, 1) == [b"here"]
        assert json.loads(server.ask(1, "spec", WATCHDOG_S)) == {"pid": processes[1].pid}
        os.kill(pid, signal.SIGCONT)
        assert json.loads(server.ask(0, "spec", WATCHDOG_S)) == {"pid": pid}
