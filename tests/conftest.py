"""Fixtures for all tests: unique endpoints, and a watch on what a test leaves behind."""

import functools
import gc
import logging
import multiprocessing
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from descriptors import of_driver
from hypothesis import HealthCheck, settings
from process import Process, Zygote
from segments import owner_of
from waiting import eventually, stopped_clock

from softs_fast.fleet import fork_server

settings.register_profile("quick", max_examples=30, deadline=None)
settings.register_profile(
    "thorough", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# Before any test starts the server: its forks have torch, which takes seconds to import.
# The first optimizer of a process imports torch._dynamo, which takes another second.
# What uses gRPC is imported, gRPC itself is not: a process that forks must not have used it.
multiprocessing.set_forkserver_preload(
    [
        "pytest",
        "torch.distributed",
        "torch._dynamo",
        "softs_fast.collectives",
        "softs_fast.loader",
        "softs_fast.coordination.node",
        "softs_fast.dataflow",
        "torch.distributed.checkpoint",
    ]
)
# Python's default start method, for tests that name none and for the DataLoader: `SOFTS_TEST_START_METHOD=forkserver
# make test`.
if start_method := os.environ.get("SOFTS_TEST_START_METHOD"):
    multiprocessing.set_start_method(start_method)

# As in the Makefile, for one room's tests without make.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Before transformers is imported: no test may wait for Hugging Face.
os.environ["HF_HUB_OFFLINE"] = "1"

# A shell's background job ignores SIGINT, one of `nohup` SIGHUP, and so would every process that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Processes that this one has started, those that have ended too.
_started: set[int] = set()

# Modules in the command lines of the processes that multiprocessing and fleets keep for the life of a process.
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "softs_fast.fleet.forking")
# Parts of the names of the files in which multiprocessing keeps the memory that processes share.
HEAP_FILES = ("/pym-", "/pymp-")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that may take minutes come first, so that pytest-xdist does not end with one of them on one worker.

    Threads of the real softs may fail by bugs of its own, in any test.
    """
    items.sort(key=_time_limit, reverse=True)
    ignore = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec is not None and any(
            isinstance(value, str) and value == "softs" for value in callspec.params.values()
        ):
            item.add_marker(ignore)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Reports go from process to process as UTF-8; what a test logs or prints may have surrogates."""
    report = yield
    report.sections = [
        (name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections
    ]
    return report


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
    """What has a larger scope than a test is made with the test's clock stopped."""
    if fixturedef.scope == "function":
        return (yield)
    with stopped_clock():
        return (yield)


def _time_limit(item: pytest.Item) -> float:
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0]) if mark else 0.0


def pytest_sessionfinish() -> None:
    """What was set apart below can be collected again, as at the end of any program."""
    gc.unfreeze()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder with a path short enough for Unix sockets (107 bytes), which `tmp_path` is not always."""
    path = Path(tempfile.mkdtemp(prefix="sf"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def frontend(short_path: Path) -> str:
    """A frontend endpoint that no other test uses."""
    return f"ipc://{short_path}/f"


@pytest.fixture
def backend(short_path: Path) -> str:
    """A backend endpoint that no other test uses."""
    return f"ipc://{short_path}/b"


@pytest.fixture(autouse=True)
def leaves_nothing_behind(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail a test that leaves a segment, a non-daemon thread, a child process or a file descriptor.

    Tests on the real softs are exempt: it leaks.
    """
    callspec = getattr(request.node, "callspec", None)
    if callspec is not None and callspec.params.get("package") == "softs":
        yield
        return
    gc.collect()
    # What is here stays for long, torch above all: later collections leave it out, which saves half a second each.
    gc.freeze()
    # A server that is the last one now may be kept by a test that failed, when another one is the last.
    before = _belongings(with_servers=True)
    yield
    _forget_exceptions(caplog)
    assert not (held := _held_locks()), (
        f"this thread has left these locked, and others would wait for ever: {held}"
    )

    def is_tidy() -> bool:
        if not _left_over(before):
            return True
        gc.collect()
        return False

    # A child that has ended its work still runs the exit handlers of CUDA's libraries: 2 s of CPU, in which a loaded
    # machine may take half a minute.
    eventually(
        is_tidy,
        lambda: f"the end of what is left behind: {sorted(_left_over(before))}",
        within_s=30.0,
        every_s=0.01,
    )


def _held_locks() -> list[logging.Handler]:
    """Return the handlers of logs that the main thread holds while it logs nothing; they are free then."""
    held = []
    for handler in logging.getLogger().handlers:
        # Raised if this thread does not hold it.
        with suppress(RuntimeError):
            while handler.lock is not None:
                handler.lock.release()
                held.append(handler)
    return held


def _forget_exceptions(caplog: pytest.LogCaptureFixture) -> None:
    """Turn captured records into plain text: an exception keeps the frames that it passed through alive."""
    for phase in ("setup", "call", "teardown"):
        for record in caplog.get_records(phase):
            record.msg, record.args, record.exc_info = record.getMessage(), (), None


def _belongings(*, with_servers: bool = False) -> set[str]:
    threads = {f"thread {thread.name}" for thread in threading.enumerate() if not thread.daemon}
    segments = {f"segment {name}" for name in os.listdir("/dev/shm") if name.startswith(("sl_", ".sl_"))}
    return threads | segments | _children() | _descriptors(with_servers=with_servers)


def _left_over(before: set[str]) -> set[str]:
    left = _belongings() - before
    left -= of_driver(before, left)
    return {item for item in left if not (item.startswith("segment ") and _is_foreign(item.split()[1]))}


def _children() -> set[str]:
    """Processes that this one has started, and theirs; helpers that live as long as the test run do not count."""
    multiprocessing.active_children()  # reaps those that have ended
    helpers = {pid for pid in _children_of(os.getpid()) if _is_helper(pid)} | set(Zygote.pids())
    found: set[int] = set()
    parents = {os.getpid()}
    while parents:
        parents = {child for parent in parents for child in _children_of(parent)}
        found |= parents
    return {f"child {pid}" for pid in found - helpers}


def _children_of(pid: int) -> Iterator[int]:
    # The process may end at any moment, and each of its threads.
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(FileNotFoundError, ProcessLookupError):
                yield from map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())


def _is_helper(pid: int) -> bool:
    """Return whether a process is the resource tracker of multiprocessing, or a fork server."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:  # it has ended
        return False
    return any(module in command for module in HELPERS)


def _descriptors(*, with_servers: bool) -> set[str]:
    """Open descriptors; multiprocessing keeps the memory of its heap and the pipes to its helpers open, a fleet its server's."""
    helpers = filter(_is_helper, _children_of(os.getpid()))
    server = fork_server.last_server()
    servers = {*Zygote.descriptors(), *([] if server is None else [server.link.fileno()])}
    read_by_helpers = {
        target for pid in helpers for _, target, mode in _open_files(pid) if mode & stat.S_IRUSR
    }
    return {
        f"descriptor {name} -> {target}"
        for name, target, mode in _open_files("self")
        if with_servers or int(name) not in servers
        if not (mode & stat.S_IWUSR and target in read_by_helpers)
        and not any(part in target for part in HEAP_FILES)
    }


def _open_files(process: int | str) -> Iterator[tuple[str, str, int]]:
    """Yield the number of each descriptor of a process, what it refers to, and whether a pipe is read or written, as a mode."""
    folder = f"/proc/{process}/fd"
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        for name in os.listdir(folder):
            with suppress(FileNotFoundError):  # the descriptor of the listing itself
                target = os.readlink(f"{folder}/{name}")
                yield name, target, os.lstat(f"{folder}/{name}").st_mode if target.startswith("pipe:") else 0


def _is_foreign(segment: str) -> bool:
    """Whether a segment is of another test run, or of a test that another worker of this one runs.

    It is if a process has it mapped or locked that this one has not started, or if its owner, which has ended, is none
    of ours.
    """
    path = Path("/dev/shm", segment)
    try:
        inode = path.stat().st_ino
        owner = owner_of(path)
    except OSError:  # it has gone, or is being made
        return True
    ours = {os.getpid(), *(int(child.split()[1]) for child in _children())}
    if _is_held(inode, ours):
        return False
    # One of softs has no owner; the fixtures that start its peers remove what they leave.
    if owner is None or owner not in ours | _started | Process.pids:
        return True
    # Its owner may be another process, which has got the number of one of ours. All maps of all processes are much to read.
    return _is_held(inode, {int(name) for name in os.listdir("/proc") if name.isdigit()})


def _is_held(inode: int, processes: set[int]) -> bool:
    """Return whether one of the processes has a file of shared memory mapped or locked.

    By inode: a segment gets its name last, so the kernel does not list it under that name.
    """
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[1] == "FLOCK" and fields[5].endswith(f":{inode}") and int(fields[4]) in processes:
            return True
    for pid in processes:
        try:
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        except OSError:  # it has ended, or belongs to another user
            continue
        if any("/dev/shm/" in line and int(line.split()[4]) == inode for line in lines):
            return True
    return False


def _note_pids(cls: Any, method: str) -> None:
    """Have a method that starts a process also note its id."""
    start = getattr(cls, method)

    @functools.wraps(start)
    def noting(self: Any, *args: Any, **kwargs: Any) -> None:
        start(self, *args, **kwargs)
        _started.add(self.pid)

    setattr(cls, method, noting)


_note_pids(subprocess.Popen, "__init__")
_note_pids(multiprocessing.Process, "start")
for start_method in multiprocessing.get_all_start_methods():
    _note_pids(multiprocessing.get_context(start_method).Process, "start")


def _stop_clock_of_first_start(cls: Any) -> None:
    """The first start waits until the fork server has imported what is preloaded."""
    start = cls.start

    def first(self: Any) -> None:
        cls.start = start
        with stopped_clock():
            start(self)

    cls.start = first


_stop_clock_of_first_start(multiprocessing.get_context("forkserver").Process)
