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
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
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
HANGS_S = 20.0
#: A measurement that takes longer has failed, seconds.
MOST_S = 90.0


def main() -> None:
    """Measure each way in turns, and print."""
    parser = argparse.ArgumentParser(prog="python -m benches.comparison", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
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
            raise SystemExit(f"{name} failed:\n{log.read_text()[-3000:]}")
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


def kill(batches: Iterator[Any]) -> dict[str, str]:
    """Kill a teacher, and tell what becomes of the stream."""
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
        except RuntimeError as error:
            # By a signal, as torch tells it.
            batch = error
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
