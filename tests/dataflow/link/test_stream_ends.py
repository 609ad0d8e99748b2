"""Workers and masters that are killed, stopped and forked."""

from __future__ import annotations

import multiprocessing
import os
import signal
from contextlib import closing, suppress
from multiprocessing.connection import Connection

import pytest
from stream_peers import Way, both, departure, each_way, events, opened, running, said, say, texts
from waiting import WATCHDOG_S

from softs_fast.dataflow.link.events import Left, Received
from softs_fast.dataflow.link.stream import MasterStream, WorkerStream, join, listen_at
from softs_fast.errors import FlowError, ForkedError, PeerLost


@each_way
def test_a_killed_worker_has_left_and_its_number_is_free(way: Way) -> None:
    with opened(*way) as master:
        for _ in range(2):
            with running(master, 0, 1, credentials=way[1]) as processes:
                master.send(0, say("echo before"))
                assert texts(master, 1) == ["before"]
                processes[0].kill()
                left = departure(master)
                assert left.worker == 0
                assert left.reason in ("its connection ended", "its process has ended")
                with pytest.raises(FlowError, match="worker 0 is not connected"):
                    master.ask(0, "spec", WATCHDOG_S)
                master.send(0, say("echo"))  # it goes nowhere
                master.send(1, say("echo other"))
                assert texts(master, 1) == ["other"]
            assert departure(master).worker == 1


@each_way
def test_what_a_killed_worker_sent_is_received_before_its_departure(way: Way) -> None:
    with opened(*way) as master, running(master, 0, credentials=way[1]) as processes:
        master.send(0, say("burst 500"))
        found = list(events(master))
        processes[0].kill()
        while not isinstance(found[-1], Left):
            found += events(master)
        numbers = [said(event.message) for event in found if isinstance(event, Received)]
        assert len(numbers) == len(found) - 1
        assert numbers == [str(number) for number in range(len(numbers))]


def test_a_killed_worker_has_left_though_its_fork_has_its_socket() -> None:
    with opened() as master, running(master, 0) as processes:
        master.send(0, say("fork"))
        (text,) = texts(master, 1)
        fork = int(text.split()[1])
        try:
            processes[0].kill()
            assert departure(master) == Left(0, "its process has ended")
        finally:
            os.kill(fork, signal.SIGKILL)


def test_a_worker_that_is_killed_while_stopped_or_holding_the_gil_has_left() -> None:
    with opened() as master, running(master, 0, 1) as processes:
        master.send(1, say("hold 600"))
        assert texts(master, 1) == ["holding"]
        stopped = processes[0].pid
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        assert master.receive(0.05) == [], "one that is stopped has not left"
        for process in processes.values():
            process.kill()
        # Both may be reported at once.
        left: set[int] = set()
        while left != {0, 1}:
            left |= {event.worker for event in events(master) if isinstance(event, Left)}


def serve(pipe: Connection) -> None:
    """A master with one worker and a fork, until it is killed."""
    master = MasterStream(listen_at("ipc://*", None))
    pipe.send(master.endpoint)
    events(master)
    master.send(0, say("hello"))
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
        with closing(WorkerStream(join(ours.recv(), None, 0))) as worker:
            fork = ours.recv()
            assert worker.receive(WATCHDOG_S) == [say("hello")]
            master.kill()
            with pytest.raises(PeerLost, match="the master has ended: the process of the master has ended"):
                worker.receive(WATCHDOG_S)
            with pytest.raises(PeerLost):
                worker.send(say("x"))
    finally:
        master.kill()
        master.join()
        master.close()
        ours.close()
        if fork is not None:
            with suppress(ProcessLookupError):
                os.kill(fork, signal.SIGKILL)


def test_forks_use_neither_end() -> None:
    with both() as (master, worker):
        pid = os.fork()
        if pid == 0:
            os._exit(0 if all_refuse(master, worker) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        # What the fork closed is still open here.
        worker.send(say("x"))
        assert texts(master, 1) == ["x"]
        master.send(0, say("y"))
        assert worker.receive(WATCHDOG_S) == [say("y")]


def all_refuse(master: MasterStream, worker: WorkerStream) -> bool:
    refused = 0
    for call in (
        lambda: master.send(0, say("")),
        lambda: master.receive(0),
        lambda: master.ask(0, "spec", 1),
        lambda: worker.send(say("")),
        lambda: worker.receive(0),
        lambda: worker.publish("a", b""),
    ):
        try:
            call()
        except ForkedError:
            refused += 1
    worker.close()
    master.close()
    return refused == 6
