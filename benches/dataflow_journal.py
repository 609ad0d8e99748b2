"""What a common save costs: `python -m benches.dataflow_journal [STEPS] [FOLDER]`.

A model of 42 MB with the momentum of SGD, 84 MB in all, that is saved at each step: in one process, and in two, where a
second role makes rows. Beside it `torch.distributed.checkpoint` and `torch.save` with a sync, of the same tensors into
the same file system, in turns with the steps.

Then rows: 8,192 of 64 to 703 tokens in two columns, 36 MiB a step, which a second process makes a step ahead of a small
model: without a journal, with saves that leave them out, and with saves that have them; at each step and at each tenth.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import softs_fast.dataflow as df
from softs_fast.dataflow.process.state import checkpoints

N_PARAMETERS, N_TENSORS, ROWS = 10_500_000, 10, 8
N_ROWS = 8192


class Trainer(df.Role):
    """Adds one to all gradients; its steps take as long as the optimizer."""

    def setup(self, mesh: df.Mesh) -> None:
        torch.set_num_threads(1)
        self.net = nn.ParameterList(
            nn.Parameter(torch.zeros(N_PARAMETERS // N_TENSORS)) for _ in range(N_TENSORS)
        )
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)

    def train(self, rows: df.Rows) -> None:
        for parameter in self.net.parameters():
            parameter.grad = torch.ones_like(parameter)
        self.optimizer.step()


class Maker(df.Role):
    """Makes rows in no time."""

    def make(self, rows: df.Rows) -> dict[str, Any]:
        return {"y": rows["x"]}


def items() -> Iterator[dict[str, Any]]:
    """Yield elements of a source."""
    while True:
        yield {"x": torch.zeros(16)}


def make_flow(folder: str = "", save_every: int = 1) -> df.Flow:
    """Return the flow."""
    maker, trainer = df.place(Maker, on=[1], name="maker"), df.place(Trainer, name="trainer")
    calls = [df.call(maker.make, "x -> y", rows=ROWS), df.call(trainer.train, "y", rows=ROWS)]
    journal = df.Journal(folder, save_every) if folder else None
    return df.Flow(calls, source=items(), max_age=1, journal=journal)


class Writer(df.Role):
    """Makes rows of 64 to 703 tokens, always the same ones."""

    def setup(self, mesh: df.Mesh) -> None:
        torch.set_num_threads(1)
        lengths = torch.randint(64, 704, (N_ROWS,), generator=torch.Generator().manual_seed(0)).tolist()
        self.columns: dict[str, Any] = {
            "seq": [torch.arange(n) for n in lengths],
            "logp": [torch.zeros(n) for n in lengths],
        }

    def write(self, rows: df.Rows) -> dict[str, Any]:
        return self.columns


class Reader(df.Role):
    """A small model, which reads all tokens."""

    def setup(self, mesh: df.Mesh) -> None:
        torch.set_num_threads(1)
        self.net = nn.Linear(8, 8)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def train(self, rows: df.Rows) -> dict[str, float]:
        return {"tokens": float(sum(map(len, rows.values_of("seq"))))}  # type: ignore[arg-type]


def make_row_flow(folder: str = "", save_every: int = 1, rows: bool = True) -> df.Flow:
    """Return the flow of many rows."""
    writer, reader = df.place(Writer, on=[1], name="writer"), df.place(Reader, name="reader")
    calls = [
        df.call(writer.write, "x -> seq, logp", rows=N_ROWS),
        df.call(reader.train, "seq, logp", rows=N_ROWS),
    ]
    journal = df.Journal(folder, save_every, rows=rows) if folder else None
    return df.Flow(calls, source=items(), group=8, max_age=1, journal=journal)


def row_flow_of(folder: str, save_every: int, *, rows: bool) -> df.Flow:
    """Return the flow of many rows, in two processes."""
    arguments: dict[str, Any] = {"folder": folder, "save_every": save_every, "rows": rows}
    return df.Flow.in_processes("benches.dataflow_journal:make_row_flow", arguments)


def measure_rows(folder: Path, n_steps: int) -> None:
    """Print what rows in saves cost."""
    print(f"8,192 rows a step: without a journal {per_step(row_flow_of('', 1, rows=False), n_steps):.1f}")
    for save_every in (1, 10):
        times = [
            per_step(
                row_flow_of(str(folder / f"{save_every}-{number}"), save_every, rows=rows), n_steps, mean=True
            )
            for number, rows in enumerate((False, True, False, True))
        ]
        print(
            f"  a save at each {save_every}. step, means: without rows {times[0]:.1f}, {times[2]:.1f}, with rows "
            f"{times[1]:.1f}, {times[3]:.1f}"
        )


def flow_of(folder: str, *, is_one: bool) -> df.Flow:
    """Return the flow in one process, or in several."""
    if is_one:
        return make_flow(folder)
    return df.Flow.in_processes("benches.dataflow_journal:make_flow", {"folder": folder})


def per_step(flow: df.Flow, n_steps: int, *, mean: bool = False) -> float:
    """Return the median, or the mean, of the milliseconds from step to step, without the first two."""
    times, before = [], time.perf_counter()
    with flow:
        for _ in flow.steps(n_steps + 2):
            now = time.perf_counter()
            times.append((now - before) * 1e3)
            before = now
    return statistics.mean(times[2:]) if mean else statistics.median(times[2:])


def alone(folder: Path, n_rounds: int) -> tuple[float, float]:
    """Return milliseconds of a checkpoint of torch, and of `torch.save` with a sync."""
    one = Trainer()
    one.setup(df.Mesh("trainer", df.Layout.parse("dp1"), {}))
    one.train(None)  # type: ignore[arg-type]
    times: tuple[list[float], list[float]] = ([], [])
    for step in range(n_rounds):
        began = time.perf_counter()
        checkpoints.save("trainer", one, folder, step)
        times[0].append((time.perf_counter() - began) * 1e3)
        began = time.perf_counter()
        with (folder / "plain.pt").open("wb") as file:
            torch.save([one.net.state_dict(), one.optimizer.state_dict()], file)
            file.flush()
            os.fsync(file.fileno())
        times[1].append((time.perf_counter() - began) * 1e3)
        shutil.rmtree(folder / "trainer")
    return statistics.median(times[0][1:]), statistics.median(times[1][1:])


def main() -> None:
    """Print a table."""
    n_steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    folder = Path(tempfile.mkdtemp(dir=sys.argv[2] if len(sys.argv) > 2 else None))
    try:
        print(f"medians of {n_steps} steps, ms; load {os.getloadavg()[0]:.1f}; {folder}")
        for name, is_one in (("one process", True), ("two processes", False)):
            without = per_step(flow_of("", is_one=is_one), n_steps)
            with_saves = per_step(flow_of(str(folder / f"{is_one}"), is_one=is_one), n_steps)
            print(f"{name}: step without a journal {without:.1f}, with a save at each step {with_saves:.1f}")
        print(
            "torch.distributed.checkpoint alone {:.1f}, torch.save and a sync {:.1f}".format(
                *alone(folder, n_steps)
            )
        )
        measure_rows(folder, n_steps)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
