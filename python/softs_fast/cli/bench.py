"""``softs-fast bench``: measures this machine with a market of its own."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from typing import Any

from ..errors import PeerLost, SampleTimeout
from .options import AddParser, between, command, option, seconds
from .table import rows_of, say, si

__all__ = ["LOADER_BATCH", "add_command", "percentiles", "render"]

_EPILOG = """\
examples:
  softs-fast bench
  softs-fast bench --duration 30 --sample-bytes 64 4096 4194304 --json"""

LOADER_BATCH = 32

#: Answers each byte on standard input with one on standard output.
_ECHO = "import os\nwhile os.read(0, 1): os.write(1, b'x')"
#: Memory that the copies cover: more than the caches of a core hold.
_COPY_BYTES = 64 << 20
#: Wait this long for a process after its input was closed, seconds.
_END_S = 10.0


def add_command(add_parser: AddParser) -> None:
    """Add the command."""
    parser = command(add_parser, "bench", "measure this machine with a market of its own", _run, _EPILOG)
    option(parser, "--duration", "seconds for all measurements together", type=seconds, default=8.0)
    option(
        parser, "--sample-bytes", "sizes of one sample", type=between(int, 1, 1 << 30), nargs="+",
        default=[64, 600_000], metavar="BYTES", shown="64 600000",
    )  # fmt: skip
    option(parser, "--json")


def _run(arguments: argparse.Namespace) -> None:
    """Measure and print.

    Raises:
        PeerLost: a process of the bench has failed; its own error is on standard error.
        SoftsError: the result cannot be written.
    """
    sizes = list(dict.fromkeys(arguments.sample_bytes))
    result = measure(sizes, arguments.duration)
    say(json.dumps(result) if arguments.json else render(result, shutil.get_terminal_size().columns))


def measure(sizes: list[int], seconds: float) -> dict[str, Any]:
    """Measure samples of some sizes, and copies and a pipe for comparison, in about `seconds`.

    Raises:
        PeerLost: a process of the bench has failed; its own error is on standard error.
    """
    from .._core import __version__

    with_torch = importlib.util.find_spec("torch") is not None
    # Per size: one by one, latency, a short copy, and the loader; and the pipe.
    each_s = seconds / (len(sizes) * (2.25 + with_torch) + 0.25)
    rows: dict[int, dict[str, Any]] = {size: {"bytes": size, "loader_samples_s": None} for size in sizes}
    with _market(sizes) as frontend:
        options = {"frontend": frontend, "sizes": sizes, "seconds": each_s, "with_torch": with_torch}
        with _peer("client", options) as client:
            for _ in range(len(sizes) * (2 + with_torch)):
                _note(rows, client.event())
    for size in sizes:
        copies_s = _copies(size, each_s / 4)
        rows[size] |= {"copies_s": copies_s, "copy_bytes_s": copies_s * size}
    pipe = _pipe_round_trips(each_s / 4)
    return {
        "version": __version__,
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "pipe_round_trip_p50_s": pipe[0],
        "pipe_round_trip_p99_s": pipe[1],
        "sizes": list(rows.values()),
    }


def render(result: dict[str, Any], width: int) -> str:
    """Return the result as text, in lines of `width` columns; the narrowest table has about 20."""
    rows = []
    for size in result["sizes"]:
        loader = size["loader_samples_s"]
        rows.append(
            [
                f"{si(size['bytes'])}B",
                si(size["one_by_one_samples_s"]),
                "-" if loader is None else si(loader),
                _time(size["latency_p50_s"]),
                _time(size["latency_p99_s"]),
                si(size["copies_s"]),
                f"{si(size['copy_bytes_s'])}B",
            ]
        )
    head = f"SAMPLE ONE-BY-ONE/S BATCH-{LOADER_BATCH}/S P50 P99 COPIES/S COPIED/S"
    without_torch = " (needs torch)" if result["sizes"][0]["loader_samples_s"] is None else ""
    notes = [
        f"ONE-BY-ONE/S, BATCH-{LOADER_BATCH}/S: samples per second, each copied out of its slot, with Client, and with "
        "SoftDataLoader"
        f"{without_torch}.",
        "P50, P99: time from giving back a client's only slot to the next sample in it, not copied out.",
        f"COPIES/S, COPIED/S: for comparison, copies of as many bytes one at a time from Python, and the bytes of them, per second. "
        f"They go through {_COPY_BYTES >> 20} MiB of memory; samples that stay in a cache can be faster.",
        f"A pipe: also for comparison, a byte to another process and back takes {_time(result['pipe_round_trip_p50_s'])} "
        f"(P99 {_time(result['pipe_round_trip_p99_s'])}).",
    ]
    title = f"softs-fast {result['version']}, Python {result['python']}, {result['cores']} cores"
    return "\n".join(
        [_wrapped(title, width), "", *_table(head, rows, width), "", *(_wrapped(n, width) for n in notes)]
    )


def _table(head: str, rows: list[list[str]], width: int) -> list[str]:
    """Return a table with a line per size, or if that is too wide, a table per size."""
    lines = rows_of(head, rows, n_left=1)
    if len(lines[0]) <= width:
        return lines
    first, *titles = head.split()
    tables = [
        rows_of(f"{first} {size}", list(zip(titles, cells, strict=True)), n_left=1) for size, *cells in rows
    ]
    return [line for table in tables for line in ("", *table)][1:]


def _wrapped(text: str, width: int) -> str:
    return textwrap.fill(text, width, break_on_hyphens=False)


def _note(rows: dict[int, dict[str, Any]], event: dict[str, Any]) -> None:
    row = rows[event["size"]]
    if event["event"] == "latency":
        row["latency_p50_s"], row["latency_p99_s"] = event["seconds"]
    else:
        row[f"{event['event']}_samples_s"] = event["samples_s"]


def percentiles(values: list[float]) -> list[float]:
    """Return median and 99th percentile.

    Raises:
        SampleTimeout: there are no values.
    """
    if not values:
        raise SampleTimeout("no sample arrived during the measurement; give it more --duration")
    values = sorted(values)
    return [values[len(values) // 2], values[min(len(values) * 99 // 100, len(values) - 1)]]


@contextlib.contextmanager
def _market(sizes: list[int]) -> Iterator[str]:
    """Start a broker and a supplier in a private folder; yield the frontend."""
    with tempfile.TemporaryDirectory(prefix="softs-") as folder:
        frontend, backend = f"ipc://{folder}/f", f"ipc://{folder}/b"
        with _peer("broker", {"frontend": frontend, "backend": backend}) as broker:
            broker.event()
            with _peer("supplier", {"backend": backend, "sizes": sizes}) as supplier:
                supplier.event()
                yield frontend


@contextlib.contextmanager
def _peer(role: str, options: dict[str, Any]) -> Iterator[_Peer]:
    """Run a process of the bench, in a session of its own: Ctrl-C ends it only by closing its input."""
    with _running(["-m", f"{__package__}.bench_peer", role, json.dumps(options)]) as process:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `event` reports it
            process.stdin.write(b"\n")
        yield _Peer(role, process)


class _Peer:
    """A process of the bench."""

    def __init__(self, role: str, process: subprocess.Popen[bytes]) -> None:
        self._role = role
        self._process = process

    def event(self) -> dict[str, Any]:
        """Wait for its next JSON object.

        Raises:
            PeerLost: the process has ended.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerLost(f"the {self._role} of the bench has ended before it was done")
        event: dict[str, Any] = json.loads(line)
        return event


@contextlib.contextmanager
def _running(program: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run Python with these arguments, and end it."""
    process = None
    try:
        with _signals_deferred():
            # -P: nothing is imported from the current folder.
            process = subprocess.Popen(
                [sys.executable, "-P", *program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        yield process
    finally:
        if process is not None:
            _end(process)


@contextlib.contextmanager
def _signals_deferred() -> Iterator[None]:
    """Handle signals at the end of the block: an exception in it would lose a process that was just started."""
    arrived: list[int] = []
    before = {
        number: signal.signal(number, lambda number, frame: arrived.append(number))
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for arrived_number in arrived:
            signal.raise_signal(arrived_number)


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.stdout.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    except BaseException:  # Ctrl-C was pressed a second time
        process.kill()
        process.wait()
        raise


def _copies(size: int, seconds: float) -> float:
    """Return the number of copies of `size` bytes per second."""
    length = max(size, _COPY_BYTES // size * size)
    # Not zeros, which would all be in one page.
    source, target = memoryview(b"\x01" * length), memoryview(bytearray(b"\x02") * length)
    n_copies, started = 0, time.perf_counter()
    while True:
        for offset in range(0, length, size):
            target[offset : offset + size] = source[offset : offset + size]
        n_copies += length // size
        taken = time.perf_counter() - started
        if taken >= seconds:
            return n_copies / taken


def _pipe_round_trips(seconds: float) -> list[float]:
    """Return median and 99th percentile of the time of one byte to another process and back, in seconds."""
    with _running(["-S", "-c", _ECHO]) as echo:
        assert echo.stdin is not None
        assert echo.stdout is not None
        there, back = echo.stdin.fileno(), echo.stdout.fileno()
        taken: list[float] = []
        started_s = last_s = 0.0
        # The first one starts the other's loop.
        while not taken or last_s - started_s < seconds:
            before_s = time.perf_counter()
            os.write(there, b"x")
            if not os.read(back, 1):
                raise PeerLost("the other end of the pipe has ended before it was done")
            last_s = time.perf_counter()
            if started_s == 0.0:
                started_s = last_s
            else:
                taken.append(last_s - before_s)
        return percentiles(taken)


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g}{unit}"
    return f"{seconds * 1e6:.3g}us"
