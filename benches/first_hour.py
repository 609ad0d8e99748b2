"""What a new user meets first: `python -m benches.first_hour [ROUNDS]`.

The quickstart of the README, from the end of its imports to its first batch; and the rate of a fleet beside that of
workers that a script starts by itself, in turns.
"""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import softs_fast as sf

BATCH_SIZE = 32
N_WORKERS = 2
SIZES = (64, 600_000)
WARM_UP_S = 0.7
SECONDS = 2.0
README = Path(__file__).parents[1] / "README.md"


def config_of(n_bytes: int) -> sf.BatchConfig:
    """Return the layout of samples of so many bytes."""
    return sf.BatchConfig([sf.TensorSpec("x", (n_bytes,), "uint8")])


def make_supplier(n_bytes: int, **arguments: Any) -> sf.Supplier:
    """Return a supplier of samples that cost nothing to make."""
    sample = bytes(n_bytes)
    return sf.Supplier(
        batch_generator_fn=lambda product_id, n: [sample] * n,
        product_ids=["p"],
        batch_config=config_of(n_bytes),
        **arguments,
    )


def by_fleet(n_bytes: int) -> float:
    """Return samples per second of a fleet."""
    make = functools.partial(make_supplier, n_bytes)
    with (
        sf.Fleet(make, n_workers=N_WORKERS) as fleet,
        fleet.loader("p", config_of(n_bytes), num_slots=2 * BATCH_SIZE, batch_size=BATCH_SIZE) as loader,
    ):
        return _rate(loader)


def by_hand(n_bytes: int) -> float:
    """Return samples per second of workers that are started here."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ends = sf.EndpointConfig(f"ipc://{folder}/f", f"ipc://{folder}/b")
        with sf.Broker(ends), contextlib.ExitStack() as workers:
            for _ in range(N_WORKERS):
                ours, theirs = context.Pipe()
                process = context.Process(target=_serve, args=(n_bytes, ends.backend, theirs))
                process.start()
                theirs.close()
                workers.callback(process.join)
                workers.callback(ours.close)
                ours.recv()
            with sf.SoftDataLoader(
                "p", ends.frontend, config_of(n_bytes), num_slots=2 * BATCH_SIZE, batch_size=BATCH_SIZE
            ) as loader:
                return _rate(loader)


def first_batch() -> float:
    """Return the seconds of the quickstart from its imports to its first batch."""
    program = re.findall(r"```python\n(.*?)```", README.read_text().split("\n## Quickstart\n")[1], re.DOTALL)[
        0
    ]
    imports, rest = program.split("\n\n", 1)
    rest = rest.replace(
        "            print(", "            print(time.perf_counter() - began)\n            print("
    )
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "quickstart.py")
        script.write_text(f"{imports}\nimport time\n\nbegan = time.perf_counter()\n{rest}")
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[0])


def measure(rounds: int) -> dict[str, Any]:
    """Return medians: seconds to the first batch, and for each size samples per second of both and their ratio."""
    rates: dict[int, dict[str, list[float]]] = {size: {"fleet": [], "by_hand": []} for size in SIZES}
    ways: dict[str, Callable[[int], float]] = {"fleet": by_fleet, "by_hand": by_hand}
    for turn in range(rounds):
        for size, found in rates.items():
            for name in sorted(ways, reverse=turn % 2 == 0):
                found[name].append(ways[name](size))
    rows = []
    for size, found in rates.items():
        medians = {name: statistics.median(some) for name, some in found.items()}
        rows.append({"bytes": size, **medians, "ratio": medians["fleet"] / medians["by_hand"]})
    return {"first_batch_s": statistics.median(first_batch() for _ in range(rounds)), "rates": rows}


def _serve(n_bytes: int, backend: str, pipe: Connection) -> None:
    with make_supplier(n_bytes, endpoint=backend):
        pipe.send(None)
        with contextlib.suppress(EOFError):
            pipe.recv()


def _rate(loader: sf.SoftDataLoader) -> float:
    batches = iter(loader)
    began = time.perf_counter()
    while time.perf_counter() - began < WARM_UP_S:
        next(batches)
    before = loader.stats
    began = time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        next(batches)
    return loader.stats.since(before).samples_per_s


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 5), indent=1))
