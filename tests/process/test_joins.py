"""Waits for threads, which a signal ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time

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
