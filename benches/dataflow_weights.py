"""Weights from one process to another of the host: `python -m benches.dataflow_weights [ROUNDS]`.

A model of 42 MB is shown by one process, and copied into the model of another one, in turns:

* "regions": what hooks of a flow do: regions into a store, freed when the target has them; read where they are.
* "values": the same store, the whole model as one value that the target copies before it is applied.
* "window": `softs_fast.snapshots`, two halves that stay; read into other memory, then applied when it is whole.

Times are medians of the rounds, elapsed and of the processor, beside `torch._foreach_copy_` of the same tensors.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

import softs_fast.dataflow as df
from softs_fast.dataflow.link.layouts import KnownLayouts
from softs_fast.dataflow.link.messages import State, decode, encode
from softs_fast.dataflow.store import DataManager, Place
from softs_fast.dataflow.store.weights.exchange import show, take
from softs_fast.dataflow.store.weights.forms import Held, HeldForms
from softs_fast.dataflow.store.weights.held import held_tensors
from softs_fast.snapshots import RemoteWindow, SnapshotLayout, Window, average

MODELS = {
    "10 tensors": [(1024, 1024)] * 10,
    "160 tensors": [(256, 256)] * 160,
    "5000 tensors": [(2048,)] * 5000,
}


class Model(df.Role):
    """A role."""


SOURCE, TARGET = df.place(Model, on=[0], name="source"), df.place(Model, on=[1], name="target")


def tensors(shapes: list[tuple[int, ...]], seed: int) -> dict[str, Tensor]:
    """Return the tensors of a model."""
    torch.manual_seed(seed)
    return {f"layer.{i}.weight": torch.randn(shape) for i, shape in enumerate(shapes)}


class Regions:
    """What hooks do: tensors are compared with those of the last time, then shown or taken."""

    def __init__(self, worker: int, mine: dict[str, Tensor]) -> None:
        self._store = DataManager(worker, max_bytes=1 << 28)
        self._role, self._worker, self._mine = SOURCE if worker == 0 else TARGET, worker, mine
        self._forms: list[HeldForms] = []
        self._sent, self._got = KnownLayouts(), KnownLayouts()

    def _held(self) -> Held:
        held = held_tensors(self._role, self._worker, self._mine, known=self._forms)
        self._forms = [held.forms]
        return held

    def show(self) -> Any:
        """Make the weights of now readable; returns what the target needs."""
        return encode(State(1, show(self._store, 1, 0, self._held())), self._sent)

    def take(self, said: Any) -> None:
        """Copy them."""
        state = decode(said, self._got)
        assert isinstance(state, State)
        take(
            self._store.mapped,
            SOURCE,
            TARGET,
            worker=1,
            theirs=None,
            mine=self._held(),
            eta=None,
            await_shown=lambda known: [state.shown],
        )

    def clear(self) -> None:
        """The target has them."""
        self._store.free([1])

    def close(self) -> None:
        """End it."""
        self._store.close()


class Values(Regions):
    """One value of all tensors, which the target copies first."""

    def show(self) -> Any:
        """Make the weights of now readable; returns what the target needs."""
        return self._store.put("weights", [1], [list(self._mine.values())])[0].as_wire()

    def take(self, said: Any) -> None:
        """Copy them."""
        (found,) = self._store.get([Place.from_wire(said)])
        assert isinstance(found, list)
        for one, other in zip(self._mine.values(), found, strict=True):
            one.copy_(other)


class Snapshots:
    """A window of two halves."""

    def __init__(self, worker: int, mine: dict[str, Tensor]) -> None:
        self._mine, self._layout = mine, SnapshotLayout.of(mine)
        self._window = Window(self._layout) if worker == 0 else None
        self._scratch = self._layout.scratch()
        self._remote: RemoteWindow | None = None

    def show(self) -> Any:
        """Make the weights of now readable; returns what the target needs."""
        assert self._window is not None
        self._window.publish(self._mine, step=0, metric=None, trained=0)
        return self._window.address

    def take(self, said: Any) -> None:
        """Copy them."""
        self._remote = self._remote or RemoteWindow.open(said)
        assert average([self._remote], [1.0], self._mine, self._layout, scratch=self._scratch)

    def clear(self) -> None:
        """The halves stay."""

    def close(self) -> None:
        """End it."""
        for one in (self._window, self._remote):
            if one is not None:
                one.close()


WAYS: dict[str, Callable[[int, dict[str, Tensor]], Any]] = {
    "regions": Regions,
    "values": Values,
    "window": Snapshots,
}


def timed(call: Callable[[], Any]) -> tuple[float, float, Any]:
    """Return milliseconds, milliseconds of the processor, and what a call returned."""
    began, used = time.perf_counter(), time.process_time()
    found = call()
    return (time.perf_counter() - began) * 1e3, (time.process_time() - used) * 1e3, found


def target(shapes: list[tuple[int, ...]], connection: Connection) -> None:
    """Take what the other process shows, check it, and answer with times."""
    torch.set_num_threads(1)
    expected = tensors(shapes, 0)
    ways = {name: (mine := tensors(shapes, 1), make(1, mine)) for name, make in WAYS.items()}
    connection.send("ready")
    while (said := connection.recv()) is not None:
        name, what = said
        mine, way = ways[name]
        for one in mine.values():
            one.zero_()
        elapsed, used, _ = timed(lambda way=way, what=what: way.take(what))
        assert all(torch.equal(mine[key], expected[key]) for key in expected)
        connection.send((elapsed, used))
    for _, way in ways.values():
        way.close()


def measure(shapes: list[tuple[int, ...]], rounds: int) -> dict[str, list[tuple[float, ...]]]:
    """Return by way elapsed and processor milliseconds of showing and of taking; "copy" has them of copies."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=target, args=(shapes, there))
    process.start()
    here.recv()
    mine, other = tensors(shapes, 0), tensors(shapes, 1)
    ways = {name: make(0, mine) for name, make in WAYS.items()}
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in ("copy", *ways)}
    for turn in range(rounds + 2):
        lines = {}
        copied = timed(lambda: torch._foreach_copy_(list(other.values()), list(mine.values())))[:2]
        lines["copy"] = (*copied, *copied)
        for name, way in ways.items():
            elapsed, used, said = timed(way.show)
            here.send((name, said))
            lines[name] = (elapsed, used, *here.recv())
            way.clear()
        # The first turns allocate memory.
        for name, line in lines.items():
            if turn > 1:
                found[name].append(line)
    here.send(None)
    process.join()
    for way in ways.values():
        way.close()
    return found


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 25
    print(
        f"load {os.getloadavg()[0]:.0f}, {os.cpu_count()} cores; medians of {rounds}, ms (of the processor)"
    )
    for model, shapes in MODELS.items():
        print(f"42 MB, {model}")
        for name, lines in measure(shapes, rounds).items():
            show_ms, show_cpu, take_ms, take_cpu = (
                statistics.median(column) for column in zip(*lines, strict=True)
            )
            print(f"  {name:8} show {show_ms:6.1f} ({show_cpu:5.1f})   take {take_ms:6.1f} ({take_cpu:5.1f})")


if __name__ == "__main__":
    main()
