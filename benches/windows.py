"""What snapshots cost: `python -m benches.windows [ROUNDS]`.

Publishing and applying beside `torch._foreach_copy_` of the same tensors, in turns; and steps of a training of 42 MB
with and without a publisher, in turns, while every core has a process. All numbers are ratios of neighbouring runs.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from softs_fast.snapshots import Publisher, RemoteWindow, SnapshotLayout, Window, average, fetch

MODELS = {
    "42 MB, 10 tensors": [(1024, 1024)] * 10,
    "42 MB, 160 tensors": [(256, 256)] * 160,
    "41 MB, 5000 tensors": [(2048,)] * 5000,
    "2 MB, 32 tensors": [(128, 128)] * 32,
    "420 MB, 100 tensors": [(1024, 1024)] * 100,
}
# Of one sample of a training, and the size of its model.
STEP_S = 0.02
WIDTH, DEPTH = 1024, 10
STEPS = 25


def copies(shapes: list[tuple[int, ...]], rounds: int) -> dict[str, float]:
    """Return times as multiples of that of `_foreach_copy_`."""
    ours = {f"layer.{i}": torch.randn(shape) for i, shape in enumerate(shapes)}
    theirs = {name: tensor.clone() for name, tensor in ours.items()}
    layout = SnapshotLayout.of(ours)
    scratch = layout.scratch()
    with contextlib.ExitStack() as stack:
        windows = [stack.enter_context(Window(layout)) for _ in range(2)]
        remotes = [stack.enter_context(RemoteWindow.open(window.address)) for window in windows]
        for window in windows:
            window.publish(theirs, step=0, metric=None, trained=0)
        fetched = fetch(remotes[:1], [1.0], layout, scratch=scratch)
        assert fetched is not None
        to, source = list(ours.values()), list(theirs.values())
        ways: dict[str, Callable[[], object]] = {
            "apply what was fetched": lambda: fetched.apply(ours),
            "publish": lambda: windows[0].publish(theirs, step=0, metric=None, trained=0),
            "apply one donor": lambda: average(remotes[:1], [1.0], ours, layout, scratch=scratch),
            "apply two donors": lambda: average(remotes, [0.5, 0.5], ours, layout, scratch=scratch),
        }
        ratios: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(rounds + 2):
            for name, way in ways.items():
                pair = [lambda: torch._foreach_copy_(to, source), way]
                seconds = [0.0, 0.0]
                for i in (0, 1) if turn % 2 == 0 else (1, 0):
                    began = time.perf_counter()
                    pair[i]()
                    seconds[i] = time.perf_counter() - began
                if turn >= 2:
                    ratios[name].append(seconds[1] / seconds[0])
    return {name: round(statistics.median(found), 2) for name, found in ratios.items()}


class Training:
    """Steps of a model of 42 MB that take about 20 ms each."""

    def __init__(self) -> None:
        self.model = torch.nn.Sequential(
            *(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(DEPTH)), torch.nn.BatchNorm1d(WIDTH)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6)
        self.batch = torch.randn(2, WIDTH)
        for rows in (2, 4, 8, 16, 32, 64):
            self.batch = torch.randn(rows, WIDTH)
            if min(self.run(1) for _ in range(5)) > STEP_S:
                break

    def run(self, n_steps: int, after: Callable[[], None] = lambda: None) -> float:
        """Run steps; return the seconds of one."""
        began = time.perf_counter()
        for _ in range(n_steps):
            self.model(self.batch).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=False)
            after()
        return (time.perf_counter() - began) / n_steps


def steps(rounds: int) -> dict[str, Any]:
    """Return the time of a step with a publisher as a multiple of that without."""
    training = Training()
    tensors: dict[str, Tensor] = training.model.state_dict()
    layout = SnapshotLayout.of(tensors)
    scratch = layout.scratch()
    parameters, buffers = dict(training.model.named_parameters()), dict(training.model.named_buffers())
    n_steps = 0
    last_s = time.monotonic()
    n_replaced = n_published = 0

    with (
        busy(len(os.sched_getaffinity(0)) - 1),
        Window(layout) as window,
        Window(layout) as donor,
        RemoteWindow.open(window.address) as of_window,
        RemoteWindow.open(donor.address) as of_donor,
        Publisher(window, parameters, buffers, training.optimizer) as publisher,
    ):
        donor.publish(tensors, step=0, metric=None, trained=0)

        def offer() -> None:
            nonlocal n_steps, n_published
            n_steps += 1
            n_published += publisher.offer(step=n_steps, metric=None, trained=n_steps, others=[of_donor])

        def replace_every_second() -> None:
            nonlocal last_s, n_replaced
            if time.monotonic() - last_s >= 1:
                last_s = time.monotonic()
                donor.ask(of_window)
                publisher.wait()
                assert average([of_donor], [1.0], tensors, layout, scratch=scratch)
                n_replaced += 1
            offer()

        ways = {"idle publisher": offer, "a version and a replacement per second": replace_every_second}
        training.run(STEPS, replace_every_second)
        ratios: dict[str, list[float]] = {name: [] for name in ways}
        alone: list[float] = []
        for turn in range(rounds):
            for name, after in ways.items():
                seconds = [0.0, 0.0]
                for i in (0, 1) if turn % 2 == 0 else (1, 0):
                    seconds[i] = training.run(STEPS, after) if i else training.run(STEPS)
                alone.append(seconds[0])
                ratios[name].append(seconds[1] / seconds[0])
    return {
        "step_ms": round(1e3 * statistics.median(alone), 1),
        **{name: round(statistics.median(found), 3) for name, found in ratios.items()},
        "versions": n_published,
        "replacements": n_replaced,
    }


@contextlib.contextmanager
def busy(n_processes: int) -> Iterator[None]:
    """Keep other cores busy with the same training."""
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        for _ in range(n_processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=_train_until_closed, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            stack.callback(process.join)
            stack.callback(ours.close)
            ours.recv()
        yield


def _train_until_closed(pipe: Connection) -> None:
    torch.set_num_threads(1)
    training = Training()
    pipe.send(None)
    while not pipe.poll():
        training.run(1)


def main(rounds: int) -> None:
    """Print all ratios, a line of JSON for each model, and one for the training."""
    torch.set_num_threads(1)
    for name, shapes in MODELS.items():
        print(json.dumps({f"times _foreach_copy_, {name}": copies(shapes, rounds)}), flush=True)
    print(json.dumps({"times a step alone": steps(rounds)}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
