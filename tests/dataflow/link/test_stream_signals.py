"""Signals of a process that waits for messages in its main thread: it sleeps until there is something, and takes each one."""

from __future__ import annotations

import _thread
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from stream_peers import events, opened, said, say
from waiting import WATCHDOG_S, eventually

from softs_fast.dataflow.link.events import Joined, LinkEvent, Received
from softs_fast.dataflow.link.stream import MasterStream, WorkerStream, join
from softs_fast.errors import FlowError


def to_the_process() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def to_another_thread() -> None:
    """A call of the system that waits in the main thread is not interrupted then."""
    signal.raise_signal(signal.SIGINT)


def without_a_signal() -> None:
    _thread.interrupt_main()


def interrupted_by(send: Callable[[], None], stream: WorkerStream) -> None:
    def interrupt() -> None:
        wait_for_sleep(os.getpid())
        send()

    thread = threading.Thread(target=interrupt)
    try:
        thread.start()
        stream.receive(None)
    except KeyboardInterrupt:
        stream.send(say("interrupted"))
    thread.join()


def handled(stream: WorkerStream) -> None:
    """A handler that returns ends no wait."""
    signal.signal(signal.SIGUSR1, lambda number, frame: stream.send(say("handled")))
    stream.send(say("ready"))
    # The handler must not send in the midst of a message.
    stream.publish("sent", b"")
    assert stream.receive(None) == [say("go on")]
    stream.send(say("received"))


def with_an_event_loop(stream: WorkerStream) -> None:
    """The descriptor of an event loop stays its own, and gets the signal; the wait gets it, too."""
    reader, writer = os.pipe2(os.O_NONBLOCK)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGUSR1, lambda number, frame: stream.send(say("handled")))
    stream.send(say("ready"))
    # The handler must not send in the midst of a message.
    stream.publish("sent", b"")
    assert stream.receive(None) == [say("go on")]
    assert os.read(reader, 10) == bytes([signal.SIGUSR1])
    assert signal.set_wakeup_fd(-1) == writer
    stream.send(say("received"))


def idle(stream: WorkerStream) -> None:
    stream.send(say("ready"))
    stream.receive(None)


def idle_in_a_thread(stream: WorkerStream) -> None:
    stream.send(say("ready"))
    thread = threading.Thread(target=stream.receive, args=(None,), daemon=True)
    thread.start()
    signal.pause()


def wait_for_sleep(pid: int) -> None:
    """Wait until no thread of a process has run for a while: longer than the first slice of a wait."""
    seen: list[dict[str, int]] = [{}]

    def rests() -> bool:
        seen.append(switches(pid))
        return bool(seen[-1]) and seen[-1] == seen[-2]

    eventually(rests, seen, every_s=0.25)


def sleeps(count: Callable[[], object]) -> bool:
    """Return whether nothing has gone to sleep for a second: longer than the slices of any wait."""
    before = count()
    time.sleep(1)
    return count() == before


def switches(pid: int) -> dict[str, int]:
    """Return how often each thread of a process has gone to sleep; without the one that asks."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        if int(task.name) != threading.get_native_id():
            lines = (task / "status").read_text().splitlines()
            (line,) = [line for line in lines if line.startswith("voluntary_ctxt_switches:")]
            found[task.name] = int(line.split()[1])
    return found


def has_sent(master: MasterStream) -> bool:
    """Return whether the worker has sent what it says of itself."""
    with suppress(FlowError):
        master.ask(3, "sent", WATCHDOG_S)
        return True
    return False


def serve(endpoint: str, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    stream = WorkerStream(join(endpoint, None, 3))
    function(*arguments, stream)
    stream.close()


def text(master: MasterStream) -> str:
    """Wait for the next message. Before it the worker may join, and behind the last one it leaves."""
    found: list[LinkEvent] = []
    while not found:
        found = [one for one in events(master) if not isinstance(one, Joined)]
    assert isinstance(found[0], Received), found
    return said(found[0].message)


@contextmanager
def worker(function: Callable[..., None], *arguments: Any) -> Iterator[tuple[MasterStream, Any]]:
    """A worker in the main thread of a process of its own."""
    with opened() as stream:
        context = multiprocessing.get_context("forkserver")
        process = context.Process(target=serve, args=(stream.endpoint, function, arguments))
        process.start()
        try:
            yield stream, process
        finally:
            process.kill()
            process.join()
            process.close()


@pytest.mark.parametrize("send", [to_the_process, to_another_thread, without_a_signal])
def test_ctrl_c_ends_a_wait_whichever_thread_gets_it(send: Callable[[], None]) -> None:
    with worker(interrupted_by, send) as (master, _):
        assert text(master) == "interrupted"


@pytest.mark.parametrize("function", [handled, with_an_event_loop])
def test_a_handler_runs_while_the_wait_goes_on(function: Callable[[WorkerStream], None]) -> None:
    with worker(function) as (master, process):
        assert text(master) == "ready"
        eventually(lambda: has_sent(master), "it is behind its message")
        if function is handled:
            wait_for_sleep(process.pid)
        os.kill(process.pid, signal.SIGUSR1)
        assert text(master) == "handled"
        master.send(3, say("go on"))
        assert text(master) == "received"


@pytest.mark.parametrize("function", [idle, idle_in_a_thread])
def test_a_process_that_waits_for_messages_does_not_wake(function: Callable[[WorkerStream], None]) -> None:
    with worker(function) as (master, process):
        assert text(master) == "ready"
        # On a busy machine a thread may be on its way to its first wait.
        eventually(lambda: sleeps(lambda: switches(process.pid)), "it does not wake")
        assert process.is_alive()


def test_a_master_that_waits_sleeps_too() -> None:
    """In this process: of the thread that waits."""
    with opened() as stream:
        thread = threading.Thread(target=stream.receive, args=(2 * WATCHDOG_S,))
        thread.start()
        # It is busy until it has had the interpreter, and has released it.
        eventually(lambda: sleeps(lambda: switches(os.getpid())[str(thread.native_id)]), "it does not wake")
        WorkerStream(join(stream.endpoint, None, 3)).close()
        thread.join()
