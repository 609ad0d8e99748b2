"""`python -m benches.comparison`: measure the ways of docs/comparison.md, and put the table into that page.

Each way runs in processes of its own, in turns. What is not installed is left out, and the table then only printed:

    pip install softs 'ray[data]' TransferQueue
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import queue
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benches.machine import REPOSITORY, describe_commit, describe_machine
from benches.markdown import Record
from benches.report import replace

#: Of each way its name, a module that it needs, and the package that has it.
WAYS = {
    "torch_way": ("torch DataLoader", "torch", "torch"),
    "ray_data_way": ("Ray Data", "pyarrow", "ray"),
    "transfer_queue_way": ("TransferQueue", "transfer_queue", "TransferQueue"),
    "softs_way": ("softs", "softs", "softs"),
    "softs_fast_way": ("softs-fast", "softs_fast", "softs-fast"),
}
PAGE = REPOSITORY / "docs" / "comparison.md"
BEGIN = "<!-- results: begin (made by `python -m benches.comparison`) -->"
RESULTS = REPOSITORY / "benches" / "results"
FOLDER = Path(__file__).parent / "ways"
#: Batches before a teacher is killed, and batches that must come after it.
N_BEFORE, N_AFTER = 60, 200
#: A way of which no batch comes for so long has stopped, seconds.
HANGS_S = 60.0
#: A measurement that takes longer has failed, seconds.
MOST_S = 240.0


def main() -> None:
    """Measure each way in turns, and write the result and the page."""
    parser = argparse.ArgumentParser(prog="python -m benches.comparison", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS), help="ways to run, and print")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, what, began_s = options.child
        with importlib.import_module(f"benches.comparison.ways.{name}").batches() as batches:
            said = kill(batches) if what == "kill" else measure(batches, options.seconds, float(began_s))
            result = Path(os.environ["RESULT"])
            result.with_suffix(".new").write_text(json.dumps(said))
            result.with_suffix(".new").rename(result)
            # The parent ends all: some ways do not end after a kill.
            threading.Event().wait()
    found = [name for name in options.only if importlib.util.find_spec(WAYS[name][1])]
    outcome: Record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": f"python -m benches.comparison --rounds {options.rounds} --seconds {options.seconds:g}",
        "commit": describe_commit(),
        "machine": describe_machine(),
        "ways": {name: {"lines": n_lines(name), "rates": [], "kills": []} for name in found},
    }
    for name, way in outcome["ways"].items():
        way["version"] = metadata.version(WAYS[name][2])
    for number in range(options.rounds):
        for name in found:
            print(f"round {number + 1}: {name}", file=sys.stderr, flush=True)
            for what in ("rate", "kill"):
                outcome["ways"][name][f"{what}s"].append(child(name, what, options.seconds))
    outcome["load_after"] = os.getloadavg()[0]
    print(text := tables(outcome))
    if found == list(WAYS):
        name = f"comparison-{outcome['date'][:10]}-{outcome['commit']['hash'][:9]}.json"
        (RESULTS / name).write_text(json.dumps(outcome, indent=1) + "\n")
        replace(PAGE, text, BEGIN)


def tables(result: Record) -> str:
    """Return what the page shows of a result, in Markdown."""
    machine, commit = result["machine"], result["commit"]
    rows = [
        "| way | lines | samples/s | first batch after | a teacher is killed |",
        "|---|---:|---:|---:|---|",
    ]
    for name, way in result["ways"].items():
        rate = statistics.median(one["rate"] for one in way["rates"])
        first_s = statistics.median(one["first_s"] for one in way["rates"])
        title = f"[{WAYS[name][0]}](../benches/comparison/ways/{name}.py) {way['version'].partition('+')[0]}"
        rows.append(f"| {title} | {way['lines']} | {rate:,.0f} | {first_s:.1f} s | {told(way['kills'])} |")
    where = (
        f"`{result['command']}` on {result['date'][:10]}, commit `{commit['hash'][:9]}`, medians; {machine['cpu']}, "
        f"{machine['cores']} cores, Linux {machine['kernel']}, Python {machine['python']}; load {machine['load_before']:.1f} "
        f"before and {result['load_after']:.1f} after."
    )
    return "\n".join([*rows, "", where, ""])


def told(kills: Sequence[Record]) -> str:
    """Return what became of a stream whenever a teacher was killed; of numbers the worst."""
    parts = sorted({f"the student ends: `{one['error']}`" for one in kills if "error" in one})
    if any("hangs" in one for one in kills):
        parts.append(f"stands still, without a word for {HANGS_S:.0f} s")
    if on := [one for one in kills if "pause_s" in one]:
        pause_s, lost, doubled = (max(one[key] for one in on) for key in ("pause_s", "lost", "doubled"))
        order = "in order" if all(one["is_ordered"] for one in on) else "not in order"
        parts.append(
            f"continues after {pause_s:.2f} s at most; {lost:,} numbers missing, {doubled:,} twice, {order}"
        )
    return "; or ".join(parts)


def n_lines(name: str) -> int:
    """Return the lines of a way that are not empty."""
    return sum(bool(line.strip()) for line in (FOLDER / f"{name}.py").read_text().splitlines())


def child(name: str, what: str, seconds: float) -> dict[str, Any]:
    """Run a measurement in processes of its own, which end with it, however they are.

    Raises:
        SystemExit: it failed.
    """
    began_s = time.monotonic()
    command = [sys.executable, "-m", "benches.comparison", "--seconds", str(seconds)]
    command += ["--child", name, what, str(began_s)]
    with TemporaryDirectory() as folder:
        result, log = Path(folder, "result"), Path(folder, "log")
        with log.open("w") as said:
            environment = {**os.environ, "RESULT": str(result)}
            running = subprocess.Popen(
                command, stdout=said, stderr=said, start_new_session=True, env=environment
            )
            while not result.exists() and running.poll() is None and time.monotonic() < began_s + MOST_S:
                time.sleep(0.1)
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
        if not result.exists():
            raise SystemExit(f"{name} failed ({what}):\n{log.read_text()[-3000:]}")
        return dict(json.loads(result.read_text()))


def measure(batches: Iterator[Any], seconds: float, began_s: float) -> dict[str, float]:
    """Return samples per second, and the seconds from the start of the program until the first batch."""
    next(batches)
    first_s = time.monotonic() - began_s
    for _ in range(N_BEFORE):
        next(batches)
    n, begin = 0, time.perf_counter()
    while time.perf_counter() < begin + seconds:
        n += len(next(batches)["number"])
    return {"rate": n / (time.perf_counter() - begin), "first_s": first_s}


def kill(batches: Iterator[Any]) -> Record:
    """Kill a teacher, and return what becomes of the stream: numbers, or the error, or that it stands still."""
    taken: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_take, args=(batches, taken), daemon=True).start()
    numbers: list[int] = []
    for _ in range(N_BEFORE):
        batch = taken.get()
        numbers += batch["number"].flatten().tolist()
    os.kill(int(batch["pid"].flatten()[0]), signal.SIGKILL)
    last, pause_s = time.perf_counter(), 0.0
    for _ in range(N_AFTER):
        try:
            batch = taken.get(timeout=HANGS_S)
        except queue.Empty:
            return {"hangs": True}
        except RuntimeError as error:
            # By a signal, as torch tells it.
            batch = error
        if isinstance(batch, Exception):
            text = re.sub(r"\d+", "N", " ".join(str(batch).split()))
            return {"error": f"{type(batch).__name__}: {text[:80]}"}
        pause_s, last = max(pause_s, time.perf_counter() - last), time.perf_counter()
        numbers += batch["number"].flatten().tolist()
    return {
        "pause_s": pause_s,
        "lost": max(numbers) + 1 - len(set(numbers)),
        "doubled": len(numbers) - len(set(numbers)),
        "is_ordered": numbers == sorted(numbers),
    }


def _take(batches: Iterator[Any], taken: queue.SimpleQueue[Any]) -> None:
    """Take batches as a student does, some 100 a second, so that the kill meets samples on their way."""
    try:
        for batch in batches:
            taken.put(batch)
            time.sleep(0.01)
    except Exception as error:
        taken.put(error)


if __name__ == "__main__":
    main()
