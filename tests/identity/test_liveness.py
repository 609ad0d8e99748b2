"""Liveness of processes, case by case, by the functions of Rust, C++ and Python (rust/shm/tests/liveness_cases.txt)."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from softs_fast import _core, _kernels
from softs_fast.identity import Process, this_process

CASES = Path(__file__).parents[2] / "rust" / "shm" / "tests" / "liveness_cases.txt"
EXPECTED = {
    case: answer == "alive"
    for case, answer, *_ in (row.split() for row in CASES.read_text().splitlines() if row[0] != "#")
}
FUNCTIONS: dict[str, Callable[[Process], bool]] = {
    "rust": lambda process: _core.is_alive(*process),
    "c++": lambda process: _kernels.is_alive(*process),
    "python": Process.is_alive,
}
# Ends its first thread while another one runs.
WITHOUT_FIRST_THREAD = (
    "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); "
    "ctypes.CDLL(None).syscall(60 if __import__('platform').machine() == 'x86_64' else 93, 0)"
)


def recorded(pid: int) -> Process:
    """Return a process as its peers record it."""
    start = int(stat_of(pid)[19])
    return Process(pid, start, this_process().namespace)


def stat_of(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()


def await_zombie(pid: int) -> None:
    while stat_of(pid)[0] != b"Z":
        time.sleep(0.001)


@contextmanager
def free_descriptors(n: int | None) -> Iterator[None]:
    """Leave so many free descriptors; None changes nothing."""
    if n is None:
        yield
        return
    lowest = os.open("/dev/null", os.O_RDONLY)
    os.close(lowest)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + n, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def process_of(case: str) -> Iterator[tuple[Process, int | None]]:
    """Make the process of a case; yields it, and how many descriptors are free."""
    if case == "number_of_a_thread":
        told, end = threading.Event(), threading.Event()
        thread = threading.Thread(target=lambda: (told.set(), end.wait()))
        thread.start()
        told.wait()
        assert thread.native_id is not None
        yield recorded(thread.native_id)._replace(started=1), None
        end.set()
        thread.join()
        return
    program = WITHOUT_FIRST_THREAD if case == "first_thread_ended" else "import time; time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", program])
    process = recorded(child.pid)
    try:
        if case == "first_thread_ended":
            await_zombie(child.pid)
        if case.startswith("zombie"):
            child.send_signal(signal.SIGKILL)
            await_zombie(child.pid)
        if case.startswith("reaped") or case == "other_namespace":
            child.kill()
            child.wait()
        if case in ("other_start", "start_unreadable", "no_descriptor"):
            process = process._replace(started=process.started + 1)
        if case == "other_namespace":
            process = process._replace(namespace=process.namespace + 1)
        n_free = {"no_descriptor": 0, "reaped_unreadable": 0, "start_unreadable": 1, "zombie_unreadable": 1}
        yield process, n_free.get(case)
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("case", EXPECTED)
def test_a_process_counts_as_alive_or_dead_as_the_table_says(case: str, function: str) -> None:
    with process_of(case) as (process, n_free), free_descriptors(n_free):
        found = FUNCTIONS[function](process)
    assert found == EXPECTED[case]


def test_this_process_is_the_same_in_all_languages() -> None:
    me = this_process()
    assert me == Process(*_core.this_process()) == Process(*_kernels.this_process())
    assert me == recorded(os.getpid())
