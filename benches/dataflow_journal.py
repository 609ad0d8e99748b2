"""What a common save costs: `python -m benches.dataflow_journal [STEPS] [FOLDER]`.

A model of 42 MB with the momentum of SGD, 84 MB in all, that is saved at each step: in one process, and in two, where a
second role makes rows. Beside it `torch.distributed.checkpoint` and `torch.save` with a sync, of the same tensors into
the same file system, in turns with the steps.
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
from softs_fast.dataflow import checkpoints

N_PARAMETERS, N_TENSORS, ROWS = 10_500_000, 10, 8


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


def flow_of(folder: str, *, is_one: bool) -> df.Flow:
    """Return the flow in one process, or in several."""
    if is_one:
        return make_flow(folder)
    return df.Flow.in_processes("benches.dataflow_journal:make_flow", {"folder": folder})


def per_step(flow: df.Flow, n_steps: int) -> float:
    """Return the median of the milliseconds from step to step, without the first two."""
    times, before = [], time.perf_counter()
    with flow:
        for _ in flow.steps(n_steps + 2):
            now = time.perf_counter()
            times.append((now - before) * 1e3)
            before = now
    return statistics.median(times[2:])


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
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
