"""Workers are forked from a process that has imported torch; each is as a process of its own would be."""

from __future__ import annotations

import errno
import functools
import importlib
import itertools
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import factories
import forked
import pytest
from waiting import WATCHDOG_S, eventually, n_sleeps

import softs_fast as sf
from softs_fast.fleet import fork_server, forking
from softs_fast.fleet.fork_server import ForkServer, WorkerProcess, last_server, server_for

#: More than a pipe takes, and more than one that was made larger.
LARGE = bytes(2 << 20)


def ready() -> ForkServer:
    """A server; not a fixture, since pytest keeps those until a test has left nothing behind."""
    server = server_for({})
    eventually(server.is_ready, "the server is ready")
    return server


@pytest.fixture
def output() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    os.close(read)
    os.close(write)


def started(
    server: ForkServer, output: int, target: Callable[..., None], *arguments: object
) -> WorkerProcess:
    environment = os.environ | {"OMP_NUM_THREADS": "3"}
    process = WorkerProcess(server, environment, output, target, arguments, "worker")
    process.start()
    return process


@pytest.mark.usefixtures("full_server")
def test_a_process_is_as_one_of_its_own_would_be(
    output: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    # A server imports of these what its program has.
    importlib.import_module("torch")
    server = ready()
    assert "Threads:\t1\n" in Path(f"/proc/{server.pid}/status").read_text()
    monkeypatch.setenv("SOFTS_SET_LATER", "\udcff")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["a", "b"])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, "/last"])
    chances = []
    for _ in range(2):
        here, there = multiprocessing.Pipe()
        process = started(server, output[1], forked.tell, there, LARGE)
        there.close()
        facts, chance = here.recv()
        here.close()
        process.join()
        assert process.exitcode == 0
        process.close()
        chances += chance
        assert os.read(output[0], 100) == b"told\n"
        assert facts == {
            "environment": {"SOFTS_SET_LATER": "\udcff"},
            "folder": str(tmp_path),
            "path": "/last",
            "arguments": ["a", "b"],
            "parent": os.getpid(),
            "children": [],
            "signals": [signal.SIG_DFL, signal.SIG_DFL],
            "threads": 3,
            "CUDA": False,
            "large": len(LARGE),
            "had torch": True,
            "sums": (float(1 << 20), 65536.0),
        }
    assert len(set(chances)) == 6, "random numbers of one worker are not those of another"


def test_processes_end_with_their_server(output: tuple[int, int]) -> None:
    server = ready()
    process = started(server, output[1], forked.sleep)
    os.kill(server.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    eventually(lambda: not Path(f"/proc/{process.pid}").exists(), "the process has ended")
    process.close()
    assert server_for({}) is not server


#: A fleet's process that ends, and leaves a fork with the socket of its server.
FORKED = """
import os, time
from softs_fast.fleet.fork_server import server_for

server = server_for({})
while not server.is_ready():
    time.sleep(0.01)
if os.fork() == 0:
    os.read(0, 1)
else:
    print(server.pid, flush=True)
os._exit(0)
"""


def test_a_server_ends_with_the_process_of_its_fleet_although_a_fork_has_its_socket() -> None:
    command = [sys.executable, "-c", FORKED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as fleet:
        assert fleet.stdout is not None
        server = int(fleet.stdout.readline())
        fleet.wait(WATCHDOG_S)
        eventually(lambda: not Path(f"/proc/{server}").exists(), "the server has ended")


def test_a_server_sleeps_until_it_is_asked() -> None:
    server = ready()
    counts = []
    for _ in range(3):
        time.sleep(1.2)
        counts.append(n_sleeps(server.pid))
    assert len(set(counts)) == 1


def test_a_process_is_reaped_where_the_program_has_blocked_signals(output: tuple[int, int]) -> None:
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        server = ready()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    process = started(server, output[1], forked.sleep)
    process.kill()
    eventually(lambda: process.exitcode == -signal.SIGKILL, "its end is told")
    process.close()


def test_a_server_that_cannot_fork_says_so_and_goes_on(
    output: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Server:
        def fork(self, descriptors: list[int]) -> None:
            forking._Server._fork(idle, [os.dup(one) for one in descriptors])

    def no_process() -> int:
        raise BlockingIOError(errno.EAGAIN, "no more processes")

    idle = object.__new__(forking._Server)
    idle._children = {}
    monkeypatch.setattr(os, "fork", no_process)
    server: Any = Server()
    with pytest.raises(OSError, match="temporarily unavailable"):
        started(server, output[1], forked.sleep)
    assert idle._children == {}


def test_a_server_that_may_open_no_more_files_says_so_and_goes_on(output: tuple[int, int]) -> None:
    server = ready()
    first = started(server, output[1], forked.sleep)
    limits = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    used = {int(one) for one in os.listdir(f"/proc/{server.pid}/fd")}
    # Room for the memory and the status of a process, and nothing else.
    _, second_free = itertools.islice((one for one in itertools.count() if one not in used), 2)
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (second_free + 1, limits[1]))
    with pytest.raises(OSError, match="Too many open files"):
        started(server, output[1], forked.sleep)
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, limits)
    processes = [first, started(server, output[1], forked.sleep)]
    assert all(process.is_alive() for process in processes)
    for process in processes:
        process.kill()
        process.join()
        process.close()


def test_a_fleet_goes_on_with_another_server() -> None:
    with sf.Fleet(factories.make_supplier) as fleet:
        former = last_server()
        assert former is not None
        os.kill(former.pid, signal.SIGKILL)
        eventually(lambda: last_server() is not former, "there is another server")
        eventually(lambda: fleet.states() == {"worker 0": "serving"}, "the worker serves")


def test_a_server_that_cannot_begin_fails_the_fleet() -> None:
    context = multiprocessing.get_context("spawn")
    # It starts the tracker of multiprocessing, which the executable is for, too.
    context.Lock()
    context.set_executable("/bin/false")
    try:
        with pytest.raises(
            sf.FleetError, match="worker 0 failed: its process cannot start: the process that starts"
        ):
            sf.Fleet(functools.partial(factories.make_once, "x" * len(LARGE))).start()
    finally:
        context.set_executable(sys.executable)


def test_a_server_is_used_again_where_it_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    class Server:
        owner, ended = os.getpid(), False

        def __init__(self, surroundings: object) -> None:
            self.surroundings = surroundings

        def has_ended(self) -> bool:
            return self.ended

    monkeypatch.setattr(fork_server, "ForkServer", Server)
    monkeypatch.setattr(fork_server, "_last", None)
    monkeypatch.setattr(fork_server, "_LIBRARIES", ("library", "another"))
    server: Any = server_for({"OMP_NUM_THREADS": "2", "OTHER": "1"}, ["library", "unknown"])
    assert server.surroundings.libraries == ("library",), "it begins before the library is here"
    monkeypatch.setitem(sys.modules, "library", sys)
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "another")
    assert server_for({"OMP_NUM_THREADS": "2", "OTHER": "2"}) is server
    threads = server_for({"OMP_NUM_THREADS": "3"})
    assert threads is not server
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    server = server_for({"OMP_NUM_THREADS": "3"})
    assert server is not threads
    monkeypatch.setitem(sys.modules, "another", sys)
    both: Any = server_for({"OMP_NUM_THREADS": "3"})
    assert both is not server
    monkeypatch.delitem(sys.modules, "another")
    assert server_for({"OMP_NUM_THREADS": "3"}) is both, "what it has besides does no harm"
    both.ended = True
    server = server_for({"OMP_NUM_THREADS": "3"})
    assert server is not both
    server.owner = 0
    assert server_for({"OMP_NUM_THREADS": "3"}) is not server, "that of the process of which this is a fork"
