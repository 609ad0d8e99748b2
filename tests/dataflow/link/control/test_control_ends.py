"""Workers and masters that are killed, stopped and forked."""

from __future__ import annotations

import multiprocessing
import os
import signal
from contextlib import suppress
from multiprocessing.connection import Connection

import pytest
from control_peers import departure, events, messages, running
from waiting import WATCHDOG_S

from softs_fast.dataflow.link.control import ControlClient, ControlServer, Ended, Left, Received
from softs_fast.errors import ForkedError, PeerLost


def test_a_killed_worker_has_left_and_its_number_is_free() -> None:
    with ControlServer() as server:
        for _ in range(2):
            with running(server, 0, 1) as processes:
                server.send(0, b"echo before")
                assert messages(server, 1) == [b"before"]
                processes[0].kill()
                left = departure(server)
                assert left.worker == 0
                assert left.reason in ("its connection ended", "its process has ended")
                with pytest.raises(PeerLost, match="worker 0 is not connected"):
                    server.send(0, b"echo")
                server.send(1, b"echo other")
                assert messages(server, 1) == [b"other"]
            assert departure(server).worker == 1


def test_what_a_killed_worker_sent_is_received_before_its_departure() -> None:
    with ControlServer() as server, running(server, 0) as processes:
        server.send(0, b"burst 500")
        first = messages_at_least_one(server)
        processes[0].kill()
        numbers, left = list(first), None
        while left is None:
            for event in server.receive(WATCHDOG_S):
                if isinstance(event, Received):
                    numbers.append(event.payload)
                else:
                    left = event
        assert isinstance(left, Left)
        assert numbers == [b"%d" % number for number in range(len(numbers))]


def messages_at_least_one(server: ControlServer) -> list[bytes]:
    found = [event.payload for event in server.receive(WATCHDOG_S) if isinstance(event, Received)]
    assert found
    return found


def test_a_killed_worker_has_left_though_its_fork_has_its_socket() -> None:
    with ControlServer() as server, running(server, 0) as processes:
        server.send(0, b"fork")
        (text,) = messages(server, 1)
        fork = int(text.split()[1])
        try:
            processes[0].kill()
            assert departure(server) == Left(0, "its process has ended")
        finally:
            os.kill(fork, signal.SIGKILL)


def test_a_worker_that_is_killed_while_stopped_or_holding_the_gil_has_left() -> None:
    with ControlServer() as server, running(server, 0, 1) as processes:
        server.send(1, b"hold 600")
        assert messages(server, 1) == [b"holding"]
        stopped = processes[0].pid
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        assert server.receive(0.05) == [], "one that is stopped has not left"
        for process in processes.values():
            process.kill()
        # Both may be reported at once.
        left: set[int] = set()
        while left != {0, 1}:
            left |= {event.worker for event in events(server) if isinstance(event, Left)}


def serve(pipe: Connection) -> None:
    """A master with one worker and a fork, until it is killed."""
    server = ControlServer()
    pipe.send(server.endpoint)
    server.receive()
    server.send(0, b"hello")
    if (fork := os.fork()) == 0:
        signal.pause()
        os._exit(0)
    pipe.send(fork)
    signal.pause()


def test_a_worker_learns_that_its_master_was_killed() -> None:
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    master = context.Process(target=serve, args=(theirs,))
    master.start()
    theirs.close()
    fork = None
    try:
        with ControlClient(ours.recv(), 0) as client:
            fork = ours.recv()
            assert client.receive(WATCHDOG_S) == [b"hello"]
            master.kill()
            assert client.receive(WATCHDOG_S) == [Ended("the process of the master has ended")]
            with pytest.raises(PeerLost):
                client.send(b"x")
    finally:
        master.kill()
        master.join()
        master.close()
        ours.close()
        if fork is not None:
            with suppress(ProcessLookupError):
                os.kill(fork, signal.SIGKILL)


def test_forks_use_neither_end() -> None:
    with ControlServer() as server, ControlClient(server.endpoint, 0) as client:
        server.receive(WATCHDOG_S)
        pid = os.fork()
        if pid == 0:
            os._exit(0 if all_refuse(server, client) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        # What the fork closed is still open here.
        client.send(b"x")
        assert server.receive(WATCHDOG_S) == [Received(0, b"x")]
        server.send(0, b"y")
        assert client.receive(WATCHDOG_S) == [b"y"]


def all_refuse(server: ControlServer, client: ControlClient) -> bool:
    refused = 0
    for call in (
        lambda: server.send(0, b""),
        lambda: server.receive(0),
        lambda: server.ask(0, "spec", 1),
        lambda: client.send(b""),
        lambda: client.receive(0),
        lambda: client.publish("a", b""),
    ):
        try:
            call()
        except ForkedError:
            refused += 1
    client.close()
    server.close()
    return refused == 6
