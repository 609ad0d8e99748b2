"""What selective averaging costs a training: `python -m benches.selective [ROUNDS]`.

The donor is another process that has published and sleeps. Ratios are medians of neighbouring runs, in turns. Times are
of the clock and, since other processes may have the core, of the cores that this process had.
"""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch

from benches.windows import MODELS, STEPS, Training, busy
from softs_fast.averaging import Rules, Schedule, SelectiveAveraging

# Takes about 0.05 ms.
LOOP = 5_000
NOW = Schedule(publish_every=1 << 30, max_wait_steps=0)


def model_of(shapes: list[tuple[int, ...]]) -> torch.nn.Module:
    """Return a model with a parameter of each shape."""
    model = torch.nn.Module()
    for number, shape in enumerate(shapes):
        model.register_parameter(f"layer{number}", torch.nn.Parameter(torch.randn(shape)))
    return model


def applying(shapes: list[tuple[int, ...]], rounds: int, *, has_optimizer: bool) -> float:
    """Return the time of a call that takes over weights as a multiple of `_foreach_copy_` of the model."""
    model = model_of(shapes)
    to = [weight.detach() for weight in model.parameters()]
    source = [weight.clone() for weight in to]
    optimizer = torch.optim.SGD(model.parameters()) if has_optimizer else None
    ratios = []
    with (
        tempfile.TemporaryDirectory() as place,
        asleep(place, shapes),
        SelectiveAveraging(
            model, optimizer, Rules(every=2, strategy="best_only"), meet=place, rank=0, schedule=NOW
        ) as engine,
    ):
        for turn in range(rounds + 2):
            while engine._pending is None or not engine._pending.is_fetching:
                engine.step(0.1)
            while engine._board.fetched() is None:
                time.sleep(1e-3)
            engine._board.settle()
            pair = [lambda: torch._foreach_copy_(to, source), lambda: engine.step(0.1)]
            seconds = [0.0, 0.0]
            for i in (0, 1) if turn % 2 == 0 else (1, 0):
                began = time.perf_counter()
                done = pair[i]()
                seconds[i] = time.perf_counter() - began
                assert not i or done is not None
            if turn >= 2:
                ratios.append(seconds[1] / seconds[0])
    return round(statistics.median(ratios), 2)


def calls(n_steps: int) -> dict[str, Any]:
    """Return how long calls take that do not take over weights, and how long it takes from a decision to new weights."""
    training = Training()
    shapes = [tuple(tensor.shape) for tensor in training.model.parameters()]
    seconds: dict[str, list[float]] = {
        "other calls": [],
        "calls that check": [],
        "as long, of arithmetic": [],
    }
    cpu_s: dict[str, list[float]] = {name: [] for name in seconds}
    replaced: list[float] = []
    decided_s = 0.0
    with (
        tempfile.TemporaryDirectory() as place,
        asleep(place, shapes, training.model),
        SelectiveAveraging(
            training.model,
            training.optimizer,
            Rules(every=30, strategy="best_only"),
            meet=place,
            rank=0,
        ) as engine,
    ):

        def step() -> None:
            nonlocal decided_s
            n_checks = engine.counters["checks"]
            began, began_cpu = time.perf_counter(), time.thread_time()
            event = engine.step(0.1)
            ended, ended_cpu = time.perf_counter(), time.thread_time()
            if event is not None:
                replaced.append(ended - decided_s)
                return
            name = "other calls"
            if engine.counters["checks"] > n_checks:
                name, decided_s = "calls that check", began
            seconds[name].append(ended - began)
            cpu_s[name].append(ended_cpu - began_cpu)
            # How long other processes hold up any such call.
            began, began_cpu = time.perf_counter(), time.thread_time()
            sum(range(LOOP))
            seconds["as long, of arithmetic"].append(time.perf_counter() - began)
            cpu_s["as long, of arithmetic"].append(time.thread_time() - began_cpu)

        training.run(n_steps, step)
    return {
        **{
            f"{name}: p50, p99 ms, of the thread alone": [
                round(1e3 * value, 3)
                for value in (*quantiles(seconds[name][2:]), *quantiles(cpu_s[name][2:]))
            ]
            for name in seconds
        },
        "calls": len(seconds["other calls"]) + len(seconds["calls that check"]),
        "decision to new weights: median, largest s": [
            round(statistics.median(replaced), 3),
            round(max(replaced), 3),
        ],
        "replacements": len(replaced),
    }


def quantiles(values: list[float]) -> tuple[float, float]:
    """Return the median and the 99th of 100."""
    in_order = sorted(values)
    return statistics.median(in_order), in_order[int(0.99 * (len(in_order) - 1))]


def steps(rounds: int) -> dict[str, Any]:
    """Return the time of a step of a training that is averaged as a multiple of that without, all cores being busy."""
    training = Training()
    shapes = [tuple(tensor.shape) for tensor in training.model.parameters()]
    found: dict[str, Any] = {}
    # A check and a snapshot every second, or a replacement and the snapshots of it.
    ways = {"no rank reads": False, "a replacement per second": True}
    for name, has_donor in ways.items():
        with contextlib.ExitStack() as stack:
            place = stack.enter_context(tempfile.TemporaryDirectory())
            stack.enter_context(busy(len(os.sched_getaffinity(0)) - 1))
            if has_donor:
                stack.enter_context(asleep(place, shapes, training.model))
            engine = stack.enter_context(
                SelectiveAveraging(
                    training.model,
                    training.optimizer,
                    Rules(every=2 * STEPS, strategy="best_only"),
                    meet=place,
                    rank=0,
                )
            )
            step = functools.partial(engine.step, 0.1)
            training.run(STEPS, step)
            ratios: dict[str, list[float]] = {"clock": [], "cores": []}
            for turn in range(rounds):
                seconds, cpu_s = [0.0, 0.0], [0.0, 0.0]
                for i in (0, 1) if turn % 2 == 0 else (1, 0):
                    began_cpu = time.process_time()
                    seconds[i] = training.run(2 * STEPS, step if i else lambda: None)
                    cpu_s[i] = time.process_time() - began_cpu
                ratios["clock"].append(seconds[1] / seconds[0])
                ratios["cores"].append(cpu_s[1] / cpu_s[0])
            for kind, values in ratios.items():
                found[f"{name}, {kind}"] = round(statistics.median(values), 3)
            found[f"{name}: replacements, snapshots, steps"] = [
                engine.counters[key] for key in ("replaced", "published", "steps")
            ]
    return found


@contextlib.contextmanager
def asleep(place: str, shapes: list[tuple[int, ...]], like: torch.nn.Module | None = None) -> Iterator[None]:
    """Have a rank that has published, with a better metric, and sleeps."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_sleep, args=(theirs, place, shapes, like is not None), daemon=True)
    process.start()
    theirs.close()
    try:
        ours.recv()
        yield
    finally:
        ours.close()
        process.join()


def _sleep(pipe: Connection, place: str, shapes: list[tuple[int, ...]], is_training: bool) -> None:
    model = Training().model if is_training else model_of(shapes)
    with SelectiveAveraging(model, None, Rules(replace_worst=0.0), meet=place, rank=1) as engine:
        engine.step(0.9)
        pipe.send(None)
        with contextlib.suppress(EOFError):
            pipe.recv()


def main(rounds: int) -> None:
    """Print all numbers, a line of JSON each."""
    torch.set_num_threads(1)
    for name, shapes in MODELS.items():
        found = {
            "with an optimizer": applying(shapes, rounds, has_optimizer=True),
            "without": applying(shapes, rounds, has_optimizer=False),
        }
        print(json.dumps({f"call that applies, times _foreach_copy_, {name}": found}), flush=True)
    print(json.dumps(calls(100 * rounds)), flush=True)
    print(json.dumps({"times a step alone": steps(rounds)}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
