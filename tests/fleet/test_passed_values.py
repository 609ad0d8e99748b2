"""What workers get: values of any size, and a process that ends before it has read them holds nothing up."""

from __future__ import annotations

import functools
import multiprocessing
import shutil
import sys
import threading
from typing import Any

import softs_fast as sf
from softs_fast.fleet.passed import Passed

#: More than a pipe takes, and more than one that was made larger.
LARGE = 2 << 20


def told(value: bytes, event: Any) -> None:
    if len(value) == LARGE:
        event.set()


def nested(values: tuple[bytes, Any]) -> None:
    told(*values)


def test_large_values_and_events_arrive() -> None:
    context = multiprocessing.get_context("spawn")
    event = context.Event()
    with Passed((bytes(LARGE), event)) as passed:
        process = context.Process(target=nested, args=(passed,))
        process.start()
    assert event.wait(45)
    process.join(45)
    assert process.exitcode == 0


def large_worker(value: bytes) -> object:
    raise AssertionError(len(value))


def test_a_process_that_ends_before_it_has_read_holds_nothing_up() -> None:
    context = multiprocessing.get_context("spawn")
    # The first process also starts that which tracks resources, by the same command.
    process = context.Process(target=print)
    process.start()
    process.join(45)
    failed: list[BaseException] = []

    def begin() -> None:
        try:
            with sf.Fleet(functools.partial(large_worker, bytes(LARGE)), count=1, max_restarts=0):
                pass
        except sf.FleetError as error:
            failed.append(error)

    thread = threading.Thread(target=begin, daemon=True)
    context.set_executable(shutil.which("false") or "/bin/false")
    try:
        thread.start()
        thread.join(30)
    finally:
        context.set_executable(sys.executable)
    assert not thread.is_alive()
    assert "exit status 1" in str(failed[0])
