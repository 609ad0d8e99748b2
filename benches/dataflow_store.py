"""Rows from one process to another of the host: `python -m benches.dataflow_store [ROUNDS]`.

One process puts 8,192 rows of different lengths in two columns, another reads all of them, in turns. Beside it the same
rows through TransferQueue (SimpleStorage, its defaults; `pip install TransferQueue`, which brings Ray) if it is installed,
and a copy of as many bytes within a process. Times are elapsed, medians of the rounds.
"""

from __future__ import annotations

import gc
import importlib.util
import multiprocessing
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from softs_fast.dataflow.store import DataManager, Places

ROWS = 8192
COLUMNS = ("seq", "logp")


def rows() -> dict[str, list[Tensor]]:
    """Return rows of 64 to 703 tokens, int64 and float32: 36 MiB."""
    torch.manual_seed(0)
    lengths = torch.randint(64, 704, (ROWS,)).tolist()
    return {
        "seq": [torch.randint(0, 1 << 16, (n,)) for n in lengths],
        "logp": [torch.randn(n) for n in lengths],
    }


class Ours:
    """A store."""

    def __init__(self) -> None:
        self._store = DataManager(os.getpid(), max_bytes=1 << 30)

    def put(self, data: dict[str, list[Tensor]], turn: int) -> Any:
        """Write all; returns what the reader needs."""
        return [self._store.put(name, range(ROWS), data[name]).as_wire() for name in COLUMNS]

    def get(self, said: Any) -> dict[str, Any]:
        """Read all."""
        return {
            name: self._store.get(Places.from_wire(wire)) for name, wire in zip(COLUMNS, said, strict=True)
        }

    def clear(self, turn: int) -> None:
        """Drop all."""
        self._store.free(range(ROWS))

    def close(self) -> None:
        """End it."""
        self._store.close()


class TransferQueue:
    """A client of TransferQueue; the first one of the cluster starts its storage units."""

    def __init__(self) -> None:
        import ray
        import transfer_queue
        from tensordict import TensorDict

        ray.init(
            address=os.environ.get("RAY_ADDRESS"),
            namespace="bench",
            num_cpus=None if "RAY_ADDRESS" in os.environ else 8,
            include_dashboard=False if "RAY_ADDRESS" not in os.environ else None,
            log_to_driver=False,
        )
        self.address = ray.get_runtime_context().gcs_address
        self._queue, self._dict = transfer_queue, TensorDict
        transfer_queue.init()

    def put(self, data: dict[str, list[Tensor]], turn: int) -> Any:
        """Write all; returns what the reader needs."""
        fields = self._dict(
            {name: torch.nested.as_nested_tensor(data[name], layout=torch.jagged) for name in COLUMNS},
            batch_size=ROWS,
        )
        keys = [f"{turn}.{i}" for i in range(ROWS)]
        self._queue.kv_batch_put(keys=keys, partition_id="train", fields=fields, tags=[{}] * ROWS)
        return keys

    def get(self, said: Any) -> dict[str, Any]:
        """Read all."""
        found = self._queue.kv_batch_get(keys=said, partition_id="train")
        return {name: found[name].unbind() for name in COLUMNS}

    def clear(self, turn: int) -> None:
        """Drop all."""
        self._queue.kv_clear([f"{turn}.{i}" for i in range(ROWS)], "train")

    def close(self) -> None:
        """End it; the reader ends before the writer."""


def read(make: Callable[[], Any], connection: Connection, variables: dict[str, str]) -> None:
    """Read what the other process says, check it, and answer with seconds."""
    warnings.simplefilter("ignore")
    os.environ.update(variables)
    torch.set_num_threads(1)
    expected = rows()
    gc.freeze()
    one = make()
    connection.send("ready")
    while (said := connection.recv()) is not None:
        began = time.perf_counter()
        found = one.get(said)
        seconds = time.perf_counter() - began
        for name in COLUMNS:
            assert all(map(torch.equal, found[name], expected[name])), name
        del found
        connection.send(seconds)
    one.close()


def measure(make: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """Return milliseconds of put and of get."""
    data = rows()
    one = make()
    address = getattr(one, "address", None)
    here, there = multiprocessing.Pipe()
    variables = {} if address is None else {"RAY_ADDRESS": address}
    reader = multiprocessing.get_context("spawn").Process(target=read, args=(make, there, variables))
    reader.start()
    here.recv()
    gc.freeze()
    puts, gets = [], []
    for turn in range(rounds + 1):
        began = time.perf_counter()
        said = one.put(data, turn)
        puts.append(time.perf_counter() - began)
        here.send(said)
        gets.append(here.recv())
        one.clear(turn)
    here.send(None)
    reader.join()
    one.close()
    # The first turn allocates memory.
    return statistics.median(puts[1:]) * 1e3, statistics.median(gets[1:]) * 1e3


def copied(rounds: int) -> float:
    """Return milliseconds of a copy of as many bytes to new memory."""
    whole = torch.cat([one.view(torch.uint8) for column in rows().values() for one in column])
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        whole.clone()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


def main() -> None:
    """Print a table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print(f"{ROWS} rows x 2 columns; medians of {rounds}, in ms; load {os.getloadavg()[0]:.1f}")
    copy = copied(rounds)
    print(f"{'copy in a process':<20} {copy:8.1f}")
    put, get = measure(Ours, rounds)
    print(f"{'softs_fast':<20} put {put:8.1f}  get {get:8.1f}  sum {put + get:8.1f}")
    if importlib.util.find_spec("transfer_queue") is None:
        print("TransferQueue is not installed")
        return
    their_put, their_get = measure(TransferQueue, rounds)
    print(
        f"{'TransferQueue':<20} put {their_put:8.1f}  get {their_get:8.1f}  sum {their_put + their_get:8.1f}"
    )
    print(f"ratios: put {their_put / put:.1f}, get {their_get / get:.1f}, sum "
          f"{(their_put + their_get) / (put + get):.1f}")  # fmt: skip


if __name__ == "__main__":
    main()
