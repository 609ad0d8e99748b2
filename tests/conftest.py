"""Fixtures for all tests: unique endpoints, and a watch on what a test leaves behind."""

import gc
import multiprocessing
import os
import shutil
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("quick", max_examples=50, deadline=None)
settings.register_profile(
    "thorough", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# Python's default start method, for tests that name none and for the DataLoader: `SOFTS_TEST_START_METHOD=forkserver make test`.
if start_method := os.environ.get("SOFTS_TEST_START_METHOD"):
    multiprocessing.set_start_method(start_method)

# A shell's background job ignores SIGINT, and so would every process that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long a watchdog waits for what must happen; it is never what a test measures.
WATCHDOG_S = 30.0

# Modules in the command lines of the processes that multiprocessing keeps for the life of a process.
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
# Parts of the names of the files in which multiprocessing keeps the memory that processes share.
HEAP_FILES = ("/pym-", "/pymp-")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Threads of the real softs may die of its own bugs, in whichever test they happen to."""
    ignore = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec is not None and any(
            isinstance(value, str) and value == "softs" for value in callspec.params.values()
        ):
            item.add_marker(ignore)


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


@pytest.fixture
def eventually() -> Callable[..., None]:
    """Wait until a condition holds; fail with `what` if the watchdog bites."""

    def wait(condition: Callable[[], object], what: str = "condition") -> None:
        give_up = time.monotonic() + WATCHDOG_S
        while not condition():
            if time.monotonic() > give_up:
                pytest.fail(f"{what} did not become true within {WATCHDOG_S} s")
            time.sleep(0.005)

    return wait


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
    # What is here stays for long, torch above all: no collection need look at it again, which takes half a second otherwise.
    gc.freeze()
    before = _belongings()
    yield
    _forget_exceptions(caplog)
    give_up = time.monotonic() + 5.0
    while left := _left_over(before):
        if time.monotonic() > give_up:
            pytest.fail("left behind: " + ", ".join(sorted(left)))
        gc.collect()
        time.sleep(0.01)


def _forget_exceptions(caplog: pytest.LogCaptureFixture) -> None:
    """Turn captured records into plain text: an exception keeps the frames that it passed through alive."""
    for phase in ("setup", "call", "teardown"):
        for record in caplog.get_records(phase):
            record.msg, record.args, record.exc_info = record.getMessage(), (), None


def _belongings() -> set[str]:
    threads = {f"thread {thread.name}" for thread in threading.enumerate() if not thread.daemon}
    names = [path.name for pattern in ("sl_*", ".sl_*") for path in Path("/dev/shm").glob(pattern)]
    segments = {f"segment {name}" for name in names}
    return threads | segments | _children() | _descriptors()


def _left_over(before: set[str]) -> set[str]:
    left = _belongings() - before
    return {item for item in left if not (item.startswith("segment ") and _is_foreign(item.split()[1]))}


def _children() -> set[str]:
    """Child processes; the helpers that multiprocessing keeps for the life of the process do not count."""
    multiprocessing.active_children()  # reaps those that have ended
    return {f"child {pid}" for pid in _child_pids() if not _is_helper(pid)}


def _child_pids() -> set[int]:
    pids: set[int] = set()
    for children in Path("/proc/self/task").glob("*/children"):
        try:
            pids.update(map(int, children.read_text().split()))
        except (FileNotFoundError, ProcessLookupError):  # the thread has ended
            continue
    return pids


def _is_helper(pid: int) -> bool:
    """Return whether a process is the resource tracker or the fork server of multiprocessing."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:  # it has ended
        return False
    return any(module in command for module in HELPERS)


def _descriptors() -> set[str]:
    """Open descriptors; multiprocessing keeps the memory of its heap and the pipes to its helpers open."""
    helpers = filter(_is_helper, _child_pids())
    read_by_helpers = {
        target for pid in helpers for _, target, mode in _open_files(pid) if mode & stat.S_IRUSR
    }
    return {
        f"descriptor {name} -> {target}"
        for name, target, mode in _open_files("self")
        if not (mode & stat.S_IWUSR and target.startswith("pipe:") and target in read_by_helpers)
        and not any(part in target for part in HEAP_FILES)
    }


def _open_files(process: int | str) -> Iterator[tuple[str, str, int]]:
    """Yield the number of each descriptor of a process, what it refers to, and whether that is read or written, as a mode."""
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        for link in Path(f"/proc/{process}/fd").iterdir():
            with suppress(FileNotFoundError):  # the descriptor of the listing itself
                yield link.name, os.readlink(link), link.lstat().st_mode


def _is_foreign(segment: str) -> bool:
    """Return whether a process that is neither this one nor its child has the segment mapped.

    By inode: a segment gets its name last, so the kernel does not list it under that name.
    """
    try:
        inode = Path("/dev/shm", segment).stat().st_ino
    except FileNotFoundError:
        return True
    own = {str(os.getpid()), *(child.split()[1] for child in _children())}
    for maps in Path("/proc").glob("[0-9]*/maps"):
        if maps.parent.name in own:
            continue
        try:
            lines = maps.read_text().splitlines()
        except OSError:  # it has ended, or belongs to somebody else
            continue
        if any("/dev/shm/" in line and int(line.split()[4]) == inode for line in lines):
            return True
    return False
