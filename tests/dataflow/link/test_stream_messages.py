"""Messages, questions and limits between a master and its workers, in real processes and in one."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest
from stream_peers import Way, both, departure, each_way, events, flood, opened, running, said, say, texts
from waiting import WATCHDOG_S, eventually

from softs_fast.dataflow.link.events import Joined, Left, Received
from softs_fast.dataflow.link.messages import Free
from softs_fast.dataflow.link.stream import StreamLimits, WorkerStream, join
from softs_fast.errors import ConfigError, FlowError, PeerLost

#: A message of more than a MiB.
LONG = Free(tuple(range(1 << 60, (1 << 60) + (1 << 17))))


@each_way
def test_ten_thousand_messages_keep_their_order_both_ways(way: Way) -> None:
    with opened(*way) as master, closing(WorkerStream(join(master.endpoint, way[1], 0))) as worker:
        assert events(master) == [Joined(0, os.getpid(), os.uname().nodename)]
        numbers = [str(number) for number in range(10_000)]
        received: list[str] = []

        def read() -> None:
            while len(received) < len(numbers):
                received.extend(map(said, worker.receive(WATCHDOG_S)))

        reader = threading.Thread(target=read)
        reader.start()
        for number in numbers:
            master.send(0, say(number))
            worker.send(say(number))
        assert texts(master, len(numbers)) == numbers
        reader.join(WATCHDOG_S)
        assert received == numbers


@each_way
def test_a_long_message_passes_both_ways(way: Way) -> None:
    with both(*way) as (master, worker):
        master.send(0, LONG)
        (found,) = worker.receive(WATCHDOG_S)
        worker.send(found)
        assert events(master) == [Received(0, LONG)]


def test_several_workers_answer_and_leave() -> None:
    with opened() as master, running(master, 0, 1, 2) as processes:
        for worker in processes:
            master.send(worker, say(f"echo {worker}"))
        assert sorted(texts(master, 3)) == ["0", "1", "2"]
        master.send(1, say("leave"))
        assert departure(master) == Left(1, "this worker was closed")
        with pytest.raises(FlowError, match="worker 1 is not connected: it has not joined, or it has left"):
            master.ask(1, "spec", WATCHDOG_S)
        master.send(0, say("burst 1000"))
        assert texts(master, 1000) == [str(number) for number in range(1000)]


def test_a_question_is_answered_while_python_holds_the_gil() -> None:
    with opened() as master, running(master, 0) as processes:
        # Longer than the watchdog of any wait: only a thread without the GIL can answer.
        master.send(0, say("hold 600"))
        assert texts(master, 1) == ["holding"]
        published = master.ask(0, "spec", WATCHDOG_S)
        assert json.loads(published.value) == {"pid": processes[0].pid}
        assert published.age_s >= 0


def test_what_is_published_has_an_age_and_is_replaced() -> None:
    with both() as (master, worker):
        with pytest.raises(
            FlowError, match=r"worker 0 has published nothing as .spec.; it has nothing at all"
        ):
            master.ask(0, "spec", WATCHDOG_S)
        worker.publish("spec", b"one")
        worker.publish("spec", b"two")
        time.sleep(0.05)
        published = master.ask(0, "spec", WATCHDOG_S)
        assert published.value == b"two"
        assert published.age_s >= 0.05
        with pytest.raises(FlowError, match="it has spec"):
            master.ask(0, "model_config", WATCHDOG_S)
        with pytest.raises(ConfigError, match="a name has 1 to 255 bytes"):
            worker.publish("", b"")
        with pytest.raises(FlowError, match="worker 7 is not connected"):
            master.ask(7, "spec", WATCHDOG_S)


@each_way
def test_a_worker_that_does_not_receive_gets_no_more_than_its_limit(way: Way) -> None:
    with both(*way, limits=StreamLimits(unsent_bytes=1 << 20, unread_bytes=1 << 20)) as (master, worker):
        sent, why = flood(lambda message: master.send(0, message))
        assert why.startswith("worker 0 takes no more orders: worker 0 reads too slowly: ")
        # All that was taken arrives, in order.
        received: list[int] = []
        while len(received) < sent:
            received += [int(said(message).rstrip("x")) for message in worker.receive(WATCHDOG_S)]
        assert received == list(range(sent))


@each_way
def test_a_master_that_does_not_receive_slows_its_worker_down(way: Way) -> None:
    with both(*way, limits=StreamLimits(unsent_bytes=1 << 20, unread_bytes=1 << 20)) as (master, worker):
        sent, why = flood(worker.send)
        assert why.startswith("the master takes no more: the master reads too slowly")
        with pytest.raises(PeerLost, match="was closed"):
            worker.send(say("more"))
        # The connection is read again, and all that was taken arrives.
        found = list(events(master))
        while not isinstance(found[-1], Left):
            found += events(master)
        arrived = [int(said(event.message).rstrip("x")) for event in found if isinstance(event, Received)]
        assert arrived == list(range(len(arrived)))
        assert sent - 16 <= len(arrived) <= sent


@each_way
def test_receive_ends_with_the_time_and_with_the_connection(way: Way) -> None:
    with both(*way) as (master, worker):
        assert worker.receive(0) == [] == worker.receive(0.01)
        assert master.receive(0) == [] == master.receive(0.01)
        master.send(0, say("last"))
        master.close()
        assert worker.receive(WATCHDOG_S) == [say("last")]
        for _ in range(2):
            with pytest.raises(PeerLost, match="has ended: the master has closed"):
                worker.receive(WATCHDOG_S)
        with pytest.raises(PeerLost, match="the master is not connected: the master has closed"):
            worker.send(say("more"))


@each_way
def test_closing_writes_what_was_sent(way: Way) -> None:
    with both(*way) as (master, worker):
        worker.send(say("last"))
        worker.close()
        found = list(events(master))
        while not isinstance(found[-1], Left):
            found += events(master)
        assert found == [Received(0, say("last")), Left(0, "this worker was closed")]


def test_a_master_without_workers_leaves_nothing() -> None:
    with opened() as master:
        socket = Path(master.endpoint.removeprefix("ipc://"))
        assert socket.parent.stat().st_mode & 0o777 == 0o700
    assert not socket.parent.exists()


def test_idle_threads_do_not_run() -> None:
    with both() as (master, worker):
        master.send(0, say("x"))
        worker.receive(WATCHDOG_S)

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
    with opened() as master, running(master, 0, 1) as processes:
        pid = processes[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        eventually(lambda: Path(f"/proc/{pid}/stat").read_text().split()[2] == "T", "stopped")
        with pytest.raises(FlowError, match=r"worker 0 does not answer 'spec' within 0\.050 s"):
            master.ask(0, "spec", 0.05)
        # Neither it nor what waits for it holds up another one.
        _, why = flood(lambda message: [master.send(0, message) for _ in range(16)])
        assert "worker 0 reads too slowly" in why
        master.send(1, say("echo here"))
        assert texts(master, 1) == ["here"]
        assert json.loads(master.ask(1, "spec", WATCHDOG_S).value) == {"pid": processes[1].pid}
        os.kill(pid, signal.SIGCONT)
        assert json.loads(master.ask(0, "spec", WATCHDOG_S).value) == {"pid": pid}
