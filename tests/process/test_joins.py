"""Waits for threads, which a signal ends."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from waiting import WATCHDOG_S, n_sleeps

from softs_fast.process import join

ANOTHER_THREAD = """
import signal, sys, threading
from softs_fast import Broker, EndpointConfig

# The other thread runs only when this one has released the interpreter: in the wait.
sys.setswitchinterval(1000.0)
waits, never = threading.Event(), threading.Event()


def interrupt():
    waits.wait()
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    never.wait()


with Broker(EndpointConfig(*sys.argv[1:])) as broker:
    threading.Thread(target=interrupt, daemon=True).start()
    waits.set()
    try:
        broker.wait()
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_a_signal_ends_the_wait_whatever_thread_the_kernel_tells(frontend: str, backend: str) -> None:
    """It does not wake the main thread then, and neither does one that comes just before the wait."""
    done = subprocess.run(
        [sys.executable, "-c", ANOTHER_THREAD, frontend, backend],
        capture_output=True,
        text=True,
        check=False,
        timeout=WATCHDOG_S,
    )
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


def test_a_wait_sleeps_until_its_end() -> None:
    end, counts = threading.Event(), list[int]()

    def count() -> None:
        for _ in range(3):
            # The first time it has begun to wait.
            time.sleep(1.2)
            counts.append(n_sleeps(os.getpid()))
        end.set()

    thread = threading.Thread(target=count)
    thread.start()
    join(thread)
    assert end.is_set()
    assert len(set(counts)) == 1


def test_an_event_loop_of_the_program_sees_signals_of_a_wait() -> None:
    seen: list[int] = []
    told = bytearray()
    reader, writer = socket.socketpair()

    def interrupt() -> None:
        # Meanwhile the wait has begun.
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGUSR1)
        told.extend(reader.recv(1))

    with reader, writer:
        writer.setblocking(False)
        reader.settimeout(WATCHDOG_S)
        before = signal.signal(signal.SIGUSR1, lambda number, _: seen.append(number))
        signal.set_wakeup_fd(writer.fileno())
        try:
            thread = threading.Thread(target=interrupt)
            thread.start()
            join(thread)
        finally:
            assert signal.set_wakeup_fd(-1) == writer.fileno()
            signal.signal(signal.SIGUSR1, before)
    assert seen == list(told) == [signal.SIGUSR1]


class Ended(Exception):
    """What a handler raises."""


@contextmanager
def signals_to(writer: socket.socket, handler: Callable[[], None]) -> Iterator[None]:
    """Have a program's event loop see signals, SIGUSR1 have a handler, and SIGUSR2 none but the loop."""
    writer.setblocking(False)
    before = (
        signal.signal(signal.SIGUSR1, lambda *_: handler()),
        signal.signal(signal.SIGUSR2, lambda *_: None),
    )
    signal.set_wakeup_fd(writer.fileno())
    try:
        yield
    finally:
        signal.set_wakeup_fd(-1)
        for number, one in zip((signal.SIGUSR1, signal.SIGUSR2), before, strict=True):
            signal.signal(number, one)


def test_an_event_loop_sees_signals_although_a_handler_ends_the_wait() -> None:
    def end() -> None:
        os.kill(os.getpid(), signal.SIGUSR2)
        raise Ended

    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    reader, writer = socket.socketpair()
    with reader, writer, signals_to(writer, end):
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        with pytest.raises(Ended):
            join(thread)
        reader.settimeout(WATCHDOG_S)
        seen = {*reader.recv(1), *reader.recv(1)}
    over.set()
    thread.join()
    timer.join()
    assert seen == {signal.SIGUSR1, signal.SIGUSR2}


#: At any moment of a wait a handler raises; what is set for signals must be as it was.
INTERRUPTED = """
import random, signal, threading
from softs_fast.process import join

class Ended(BaseException):
    'As KeyboardInterrupt is.'

def end(*_):
    raise Ended

end_of_wait = threading.Event()
thread = threading.Thread(target=end_of_wait.wait)
thread.start()
signal.signal(signal.SIGALRM, end)
n_left = n_ended = 0
for _ in range(1500):
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.001))
        join(thread, 0.0005)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Ended:
        n_ended += 1
    n_left += signal.set_wakeup_fd(-1) != -1
end_of_wait.set()
print(n_ended > 0, n_left)
"""


def test_a_handler_that_raises_at_any_moment_leaves_no_descriptor_for_signals() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", INTERRUPTED],
        check=True,
        capture_output=True,
        text=True,
        timeout=WATCHDOG_S,
    )
    assert (done.stdout, done.stderr) == ("True 0\n", "")


#: Python has ended its threads when it deletes what is left.
AT_THE_END = """
import threading
from softs_fast.process import join

class Owner:
    def __init__(self):
        self.thread, self.join, self.itself = threading.Thread(target=print), join, self
        self.thread.start()
        self.thread.join()

    def __del__(self):
        self.join(self.thread)
        print("joined")

owner = Owner()
"""

#: A wait that Ctrl-C has ended, in a program that ends with its pipe.
PIPE = """
import os, signal, threading, time
from softs_fast.process import join

signal.signal(signal.SIGPIPE, signal.SIG_DFL)
over = threading.Event()
thread = threading.Thread(target=over.wait)
thread.start()
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    join(thread)
except KeyboardInterrupt:
    over.set()
for one in threading.enumerate():
    if one is not threading.current_thread():
        one.join()
print("all is over")
"""


@pytest.mark.parametrize(("program", "words"), [(AT_THE_END, "\njoined\n"), (PIPE, "all is over\n")])
def test_what_a_wait_leaves_ends_no_program(program: str, words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=WATCHDOG_S
    )
    assert (done.stdout, done.stderr) == (words, "")


def test_a_wait_has_no_time_limit_of_sockets() -> None:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(0.01)
    try:
        thread = threading.Thread(target=time.sleep, args=(0.3,))
        thread.start()
        join(thread, math.inf)
    finally:
        socket.setdefaulttimeout(before)
    assert not thread.is_alive()


def test_a_thread_that_has_not_begun_is_not_waited_for() -> None:
    join(threading.Thread(target=print))


def refuse(*_: object) -> None:
    raise OSError("no more files")


def refuse_a_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't create new thread at interpreter shutdown")


@pytest.mark.parametrize(
    ("owner", "name", "refused"),
    [
        (socket, "socketpair", refuse),
        (socket.socket, "dup", refuse),
        # Python 3.12 begins none while it ends, when what is left is closed.
        (threading.Thread, "start", refuse_a_thread),
    ],
    ids=["descriptors", "one descriptor", "threads"],
)
def test_a_wait_needs_nothing_that_is_used_up(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, refused: object
) -> None:
    thread = threading.Thread(target=time.sleep, args=(0.2,))
    thread.start()
    monkeypatch.setattr(owner, name, refused)
    join(thread)
    assert not thread.is_alive()
