"""`python -m benches.comparison`: print the table of docs/comparison.md.

Each way runs in processes of its own, in turns. What is not installed is left out:

    pip install softs 'ray[data]' TransferQueue
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benches.machine import describe_commit, describe_machine

WAYS = {
    "softs_fast_way": ("softs-fast", "softs_fast"),
    "softs_way": ("softs", "softs"),
    "torch_way": ("torch DataLoader", "torch"),
    "ray_data_way": ("Ray Data", "pyarrow"),
    "transfer_queue_way": ("TransferQueue on Ray", "transfer_queue"),
}
FOLDER = Path(__file__).parent / "ways"
#: Batches before a teacher is killed, and batches that must come after it.
N_BEFORE, N_AFTER = 60, 200
#: A way of which no batch comes for so long has stopped, seconds.
HANGS_S = 30.0


def main() -> None:
    """Measure each way in turns, and print."""
    parser = argparse.ArgumentParser(prog="python -m benches.comparison", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, what = options.child
        print(json.dumps(measure(name, options.seconds) if what == "rate" else kill(name)), flush=True)
        # Threads that wait for ever are no part of the measurement.
        os._exit(0)
    print(describe_commit()["hash"][:9], describe_machine())
    found = {name: module for name, (_, module) in WAYS.items() if importlib.util.find_spec(module)}
    rates: dict[str, list[float]] = {name: [] for name in found}
    firsts: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(options.rounds):
        for name in found:
            said = child(name, "rate", options.seconds)
            rates[name].append(said["rate"])
            firsts[name].append(said["first_s"])
    print("\n| way | lines | samples/s | first batch | a teacher is killed |\n|---|---|---|---|---|")
    for name in found:
        told = child(name, "kill", options.seconds)["told"]
        rate, first_s = statistics.median(rates[name]), statistics.median(firsts[name])
        print(f"| {WAYS[name][0]} | {n_lines(name)} | {rate:,.0f} | {first_s:.1f} s | {told} |", flush=True)


def n_lines(name: str) -> int:
    """Return the lines of a way that are not empty."""
    return sum(bool(line.strip()) for line in (FOLDER / f"{name}.py").read_text().splitlines())


def child(name: str, what: str, seconds: float) -> dict[str, Any]:
    """Run a measurement in a process of its own."""
    command = [sys.executable, "-m", "benches.comparison", "--seconds", str(seconds), "--child", name, what]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(f"{name} failed:\n{ended.stderr[-3000:]}")
    return dict(json.loads(lines[-1]))


def measure(name: str, seconds: float) -> dict[str, float]:
    """Return samples per second, and the seconds until the first batch."""
    begin = time.perf_counter()
    with importlib.import_module(f"benches.comparison.ways.{name}").batches() as batches:
        next(batches)
        first_s = time.perf_counter() - begin
        for _ in range(N_BEFORE):
            next(batches)
        n, begin = 0, time.perf_counter()
        while time.perf_counter() < begin + seconds:
            n += len(next(batches)["number"])
        return {"rate": n / (time.perf_counter() - begin), "first_s": first_s}


def kill(name: str) -> dict[str, str]:
    """Kill a teacher, and tell what becomes of the stream."""
    with importlib.import_module(f"benches.comparison.ways.{name}").batches() as batches:
        taken: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=_take, args=(batches, taken), daemon=True).start()
        numbers: list[int] = []
        for _ in range(N_BEFORE):
            batch = taken.get()
            numbers += batch["number"].flatten().tolist()
        os.kill(int(batch["pid"].flatten()[0]), signal.SIGKILL)
        killed, pause_s = time.perf_counter(), 0.0
        last = killed
        for _ in range(N_AFTER):
            try:
                batch = taken.get(timeout=HANGS_S)
            except queue.Empty:
                return {"told": f"stands still, without a word for {HANGS_S:.0f} s"}
            if isinstance(batch, Exception):
                text = " ".join(str(batch).split())
                return {"told": f"the student ends: `{type(batch).__name__}: {text[:80]}`"}
            pause_s, last = max(pause_s, time.perf_counter() - last), time.perf_counter()
            numbers += batch["number"].flatten().tolist()
    doubled = sum(n - 1 for n in Counter(numbers).values())
    lost = max(numbers) + 1 - len(set(numbers))
    order = "in order" if numbers == sorted(numbers) else "not in order"
    return {"told": f"goes on after {pause_s:.2f} s at most; {lost} numbers lost, {doubled} doubled, {order}"}


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
