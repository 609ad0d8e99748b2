"""``softs-fast bench``."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from shell import Command
from waiting import eventually

from softs_fast.cli import bench
from softs_fast.cli.bench import render


def test_it_measures(command: Command, tmp_path: Path, short_path: Path) -> None:
    arguments = ["bench", "--duration", "0.5", "--sample-bytes", "64", "100000", "64", "--json"]
    status, out, errors = command.run(*arguments, TMPDIR=str(short_path))
    assert (status, errors) == (0, "")
    result = json.loads(out)
    assert [size["bytes"] for size in result["sizes"]] == [64, 100_000]
    for size in result["sizes"]:
        assert all(value > 0 for value in size.values())
        assert size["latency_p50_s"] <= size["latency_p99_s"]
        assert size["copy_bytes_s"] == size["copies_s"] * size["bytes"]
    assert 0 < result["pipe_round_trip_p50_s"] <= result["pipe_round_trip_p99_s"]
    assert not list(short_path.iterdir())


def result_of(**loader: float | None) -> dict[str, Any]:
    size = {
        "bytes": 600_000,
        "one_by_one_samples_s": 31_000.0,
        "loader_samples_s": 30_000.0,
        "latency_p50_s": 25e-6,
        "latency_p99_s": 0.0012,
        "copies_s": 33_000.0,
        "copy_bytes_s": 19.8e9,
    }
    return {
        "version": "1.0",
        "python": "3.11",
        "cores": 4,
        "pipe_round_trip_p50_s": 6e-6,
        "pipe_round_trip_p99_s": 9e-6,
        "sizes": [size | loader, {**size, **loader, "bytes": 64}],
    }


def test_a_table_of_it() -> None:
    text = render(result_of(), 80)
    (row,) = [line for line in text.splitlines() if line.startswith("600")]
    assert row.split() == ["600kB", "31.0k", "30.0k", "25us", "1.2ms", "33.0k", "19.8GB"]
    assert text.isascii(), "every terminal shows it"
    assert "takes 6us (P99 9us)" in " ".join(text.split())
    assert "torch" not in text
    text = render(result_of(loader_samples_s=None), 80)
    (row,) = [line for line in text.splitlines() if line.startswith("600")]
    assert row.split()[2] == "-"
    assert "(needs torch)" in text


def test_every_title_is_explained() -> None:
    text = render(result_of(), 200)
    (titles,) = [line.split() for line in text.splitlines() if line.startswith("SAMPLE")]
    for title in titles[1:]:
        assert re.search(rf"^(\S+, )?{title}[,:]", text, re.MULTILINE), title


def test_a_terminal_of_any_width() -> None:
    needed = next(len(line) for line in render(result_of(), 200).splitlines() if line.startswith("SAMPLE"))
    for width in (20, 40, needed - 1, needed, 200):
        lines = render(result_of(), width).splitlines()
        assert max(map(len, lines)) <= width
        cells = [line.split() for line in lines]
        assert (["SAMPLE", "600kB"] in cells) == (["P50", "25us"] in cells) == (width < needed)


def test_a_process_that_fails_says_why(command: Command, short_path: Path) -> None:
    folder = short_path / ("x" * 100)  # too long for a socket
    folder.mkdir()
    status, out, errors = command.run("bench", "--duration", "1", "--sample-bytes", "64", TMPDIR=str(folder))
    assert (status, out) == (1, "")
    first, second = errors.splitlines()
    assert first.startswith("softs-fast: broker of the bench: ")
    assert second == "softs-fast: the broker of the bench has ended before it was done"
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    ("after", "number", "status"),
    [("broker", signal.SIGHUP, 129), ("supplier", signal.SIGINT, 130), ("client", signal.SIGTERM, 143)],
)
def test_a_signal_ends_all_of_it(
    command: Command, short_path: Path, after: str, number: int, status: int
) -> None:
    process = command.start("bench", "--duration", "60", "--sample-bytes", "64", TMPDIR=str(short_path))
    eventually(lambda: after in roles(process.pid), f"a {after}")
    started = set(roles(process.pid).values())
    assert command.end(process, number) == (status, "", "")
    assert not list(short_path.iterdir())
    eventually(lambda: not [pid for pid in started if Path(f"/proc/{pid}").exists()], "their end")


def test_a_bench_that_is_killed_leaves_no_process(command: Command, short_path: Path) -> None:
    process = command.start("bench", "--duration", "60", "--sample-bytes", "64", TMPDIR=str(short_path))
    eventually(lambda: "client" in roles(process.pid), "a client")
    started = set(roles(process.pid).values())
    process.kill()
    eventually(lambda: not [pid for pid in started if Path(f"/proc/{pid}").exists()], "their end")


def roles(pid: int) -> dict[str, int]:
    """The processes of a bench by role."""
    found = {}
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # one has ended
            for child in children.read_text().split():
                words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
                if b"softs_fast.cli.bench_peer" in words:
                    found[words[words.index(b"softs_fast.cli.bench_peer") + 1].decode()] = int(child)
    return found


def test_a_signal_while_a_process_starts_ends_that_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt), bench._running(["-S", "-c", bench._ECHO]):
        pytest.fail("the signal was lost")
    (process,) = started
    assert process.returncode is not None
