"""Stacks of workers: written by a signal handler in their thread, read and sent by their native thread."""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from stream_peers import both, events, opened
from waiting import WATCHDOG_S, eventually

from softs_fast.dataflow.link.events import Joined, Received
from softs_fast.dataflow.link.messages import Ready
from softs_fast.dataflow.link.stream import MasterStream, WorkerStream, join
from softs_fast.dataflow.process.stack import answers_stack
from softs_fast.dataflow.workers.sightings import stack_of
from softs_fast.errors import ConfigError


def hold_the_gil(link: WorkerStream) -> None:
    link.send(Ready())
    while True:  # a signal ends one of them early
        ctypes.PyDLL(None).sleep(600)


def match_for_hours(link: WorkerStream) -> None:
    """The interpreter sees no signal before a match ends; this one takes longer than any test."""
    import re

    link.send(Ready())
    re.match("(a|a)+$", "a" * 60 + "b")


def wait_for_an_event(link: WorkerStream) -> None:
    link.send(Ready())
    threading.Event().wait()


def wait_without_the_signal(link: WorkerStream) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGURG])
    wait_for_an_event(link)


def wait_with_another_handler(link: WorkerStream) -> None:
    # A handler of Python can be set in the main thread alone, which `serve` is in.
    signal.signal(signal.SIGURG, lambda number, frame: os._exit(3))
    wait_for_an_event(link)


def wait_beside_threads_that_compute(link: WorkerStream) -> None:
    """Stacks of such threads change all the time: one that were read beside them would end the process."""

    def deep(n: int) -> int:
        return deep(n - 1) + 1 if n else sum(range(n + 3))

    def compute() -> None:
        for n in range(10**9):
            deep(n * 37 % 700)

    for _ in range(2):
        threading.Thread(target=compute, daemon=True).start()
    wait_for_an_event(link)


def serve(endpoint: str, function: Callable[[WorkerStream], None], first: str) -> None:
    link = WorkerStream(join(endpoint, None, 3))
    if first == "taken":
        signal.signal(signal.SIGURG, lambda number, frame: os._exit(3))
    with answers_stack(link):
        function(link)


@contextmanager
def worker(function: Callable[[WorkerStream], None], first: str = "") -> Iterator[tuple[MasterStream, Any]]:
    """A worker in a process of its own that is inside of a function."""
    with opened() as master:
        arguments = (master.endpoint, function, first)
        process = multiprocessing.get_context("forkserver").Process(target=serve, args=arguments)
        process.start()
        try:
            seen: list[type] = []
            while seen != [Joined, Received]:
                seen += [type(one) for one in events(master)]
            yield master, process
            assert process.is_alive(), "the question has ended the process"
        finally:
            process.kill()
            process.join()
            process.close()


@pytest.mark.parametrize("function", [hold_the_gil, match_for_hours])
def test_a_function_that_holds_the_gil_is_named(function: Callable[[WorkerStream], None]) -> None:
    with worker(function) as (master, _):
        # The function has said that it begins just before it does.
        eventually(
            lambda: any(
                "test_stream_stacks.py" in one and one.endswith(f" {function.__name__}")
                for one in stack_of(master, 3, WATCHDOG_S)
            ),
            "the function is named",
        )


def test_a_stack_is_answered_again_and_again_beside_threads_that_compute() -> None:
    with worker(wait_beside_threads_that_compute) as (master, _):
        for _ in range(100):
            stack = stack_of(master, 3, WATCHDOG_S)
            assert "test_stream_stacks.py" in stack[-1] or len(stack) > 3, stack
            assert all(" deep" not in one and " compute" not in one for one in stack)


def test_a_thread_that_blocks_the_signal_is_said_to() -> None:
    with worker(wait_without_the_signal) as (master, _):
        assert stack_of(master, 3, WATCHDOG_S) == ("no stack: the thread does not take the signal",)


def test_a_handler_that_came_later_is_not_run() -> None:
    with worker(wait_with_another_handler) as (master, _):
        assert stack_of(master, 3, WATCHDOG_S) == ("no stack: the signal has another handler by now",)


def test_a_handler_that_was_there_before_stays() -> None:
    with worker(wait_for_an_event, "taken") as (master, process):
        assert stack_of(master, 3, WATCHDOG_S) == ("no stack: SIGURG has a handler of the program",)
        os.kill(process.pid, signal.SIGURG)
        process.join(WATCHDOG_S)
        assert process.exitcode == 3
        process.is_alive = lambda: True


def test_the_signal_is_as_before_when_the_link_has_ended() -> None:
    with both() as (_, link):
        with answers_stack(link):
            assert signal.getsignal(signal.SIGURG) is signal.SIG_DFL, "a handler of Python was set"
        os.kill(os.getpid(), signal.SIGURG)
        assert not faulthandler.unregister(signal.SIGURG)


def test_a_question_that_cannot_be_answered_is_refused() -> None:
    with both() as (_, link):
        with pytest.raises(ConfigError, match="there is no pipe"):
            link.answer_stack("stack", signal.SIGURG)
        os.close(link.stack_pipe())
        with pytest.raises(ConfigError, match="signal 23 has no handler"):
            link.answer_stack("stack", signal.SIGURG)
