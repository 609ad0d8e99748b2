"""What a Job costs beside a loader and a WorkerNode that a program uses by hand.

``python -m benches.job --ranks 2``. A step sleeps for 20 ms, in parts after each micro-batch, and trains a small model on
samples that suppliers have made ahead. The same processes make some steps by hand and some with a Job, in turns. One rank
is alone: without a coordinator, by hand with the loader and the optimizer; and in further turns by hand with what a Job does
for each micro-batch and no training must do: it begins random numbers anew, and adds up the losses.

With ``--checkpoint-mb 84`` it measures instead what checkpoints of so many megabytes cost one rank alone, or ``--ranks`` of
torch.distributed that each have a part: steps that begin while none is being written, those that overlap one, and the copy
and the write.

With ``--kills 5`` it kills a rank and starts another one so often, and measures how long it takes until the others commit a
step, how many of the samples that a rank had ordered it still wants with another number of ranks, and how many samples
suppliers make for one that is trained. ``--sample-ms 2`` has them take so long for each sample.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import logging
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import softs_fast as sf
from softs_fast.coordination.node import WorkerNode
from softs_fast.gpu import ranks

from .steps import Coordinator

WIDTH, GLOBAL, MICRO = 64, 96, 8
N_MICRO = GLOBAL // MICRO
CONFIG = sf.BatchConfig([sf.TensorSpec("x", (WIDTH,), "float32")])
WARM_UP = 10


def make_supplier() -> sf.Supplier:
    """A supplier of samples that cost nothing."""
    batch = torch.rand(64, WIDTH)
    return sf.Supplier(
        batch_generator_fn=lambda product_id, n, sequences: {"x": batch[:n]},
        product_ids=["1"],
        batch_config=CONFIG,
    )


def training() -> tuple[torch.nn.Module, sf.TrainingState]:
    """A model and its state."""
    torch.manual_seed(0)
    model = torch.nn.Linear(WIDTH, 16)
    return model, sf.TrainingState(model, torch.optim.SGD(model.parameters(), 1e-3))


def train(say: Callable[[Any], None], rank: int, size: int, options: dict[str, Any]) -> None:
    """Make steps in turns, by hand and with a Job; report the milliseconds of each, and those of its thread's processor."""
    n_micro = options["micro_batches"] // size
    pause_s = options["step_ms"] / 1000 / n_micro
    addresses = options["coordinators"]
    frontend = options["frontend"]
    with contextlib.ExitStack() as running:
        kinds = {"hand": by_hand(running, rank, size, frontend, addresses, n_micro, pause_s)}
        if size == 1:
            kinds["hand_more"] = by_hand(
                running, rank, size, frontend, addresses, n_micro, pause_s, does_more=True
            )
        kinds["job"] = with_job(running, frontend, addresses, n_micro * size, pause_s)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
        for turn in range(options["rounds"] + 1):
            for name, steps in kinds.items():
                for _ in range(WARM_UP if turn == 0 else options["steps"]):
                    began, cpu_began = time.perf_counter(), time.thread_time()
                    next(steps)
                    cpu_s = time.thread_time() - cpu_began
                    if turn:
                        found[name].append((1000 * (time.perf_counter() - began), 1000 * cpu_s))
    say(found)


def by_hand(
    running: contextlib.ExitStack,
    rank: int,
    size: int,
    frontend: str,
    addresses: list[str],
    n_micro: int,
    pause_s: float,
    *,
    does_more: bool = False,
) -> Iterator[None]:
    """Make a step for each item, without a Job; `does_more`: with random numbers that begin anew, and the mean loss."""
    model, state = training()
    loader = sf.SoftDataLoader(
        "1",
        frontend,
        CONFIG,
        num_slots=n_micro * size * MICRO,
        ordered=True,
        rank=rank,
        world_size=size,
        batch_size=MICRO,
    )
    running.callback(loader.close)
    batches = iter(loader)
    node = running.enter_context(WorkerNode(addresses[0], state, job="hand")) if addresses else None
    losses, scale = torch.zeros(()), 1 / n_micro
    while True:
        if does_more:
            losses.zero_()
        with contextlib.nullcontext() if node is None else node.step():
            for number in range(n_micro):
                batch = next(batches)
                if does_more:
                    torch.default_generator.manual_seed(number)
                loss = model(batch["x"]).mean()
                (loss * scale).backward()
                if does_more:
                    losses.add_(loss.detach(), alpha=scale)
                time.sleep(pause_s)
        if node is None:
            state.apply()
        yield


def with_job(
    running: contextlib.ExitStack, frontend: str, addresses: list[str], n_micro: int, pause_s: float
) -> Iterator[None]:
    """Make a step for each item, with a Job."""
    model, state = training()
    data = sf.LiveData(
        "1", CONFIG, global_batch_size=n_micro * MICRO, micro_batch_size=MICRO, endpoint=frontend
    )
    address = addresses[1] if addresses else None
    job = running.enter_context(sf.Job("job", data, state, coordinator=address))
    for step in job.steps(10**9):
        with step:
            for batch in step.batches():
                step.backward(model(batch["x"]).mean())
                time.sleep(pause_s)
        yield


def train_with_checkpoints(say: Callable[[Any], None], rank: int, size: int, options: dict[str, Any]) -> None:
    """Make steps with a checkpoint now and then; report what each step took, and whether one was being written."""
    model, _ = training()
    # It is only copied and written, with two moments for each weight: in use it would make steps longer.
    n_rows = options["checkpoint_mb"] * 10**6 // 4 // WIDTH // 3
    model.ballast = torch.nn.Linear(WIDTH, n_rows, bias=False)
    if size > 1:
        dist.init_process_group("gloo", init_method=f"file://{options['store']}", rank=rank, world_size=size)
        fully_shard(model.ballast)
        fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    ballast = model.ballast.weight
    moments = {name: torch.zeros_like(ballast) for name in ("exp_avg", "exp_avg_sq")}
    optimizer.state[ballast] = {"step": torch.zeros(()), **moments}
    state = sf.TrainingState(model, optimizer)
    data = sf.LiveData(
        "1", CONFIG, global_batch_size=GLOBAL, micro_batch_size=MICRO, endpoint=options["frontend"]
    )
    every, pause_s = options["steps"], options["step_ms"] / 1000 / (N_MICRO // size)
    logged: list[float] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(float(record.args[1]))  # type: ignore[index, method-assign, arg-type]
    log = logging.getLogger("softs_fast.job.saver")
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    found: dict[str, list[float]] = {"quiet": [], "overlapped": [], "with_copy": []}
    checkpoints = sf.Checkpoints(options["checkpoints"], every=every, keep=1)
    with sf.Job("job", data, state, checkpoints=checkpoints) as job:
        for step in job.steps(every * (options["rounds"] + 1)):
            n_logged, began = len(logged), time.perf_counter()
            with step:
                for batch in step.batches():
                    step.backward(model(batch["x"]).mean())
                    time.sleep(pause_s)
            took_ms = 1000 * (time.perf_counter() - began)
            if step.number > every:
                kind = "quiet" if n_logged % 2 == 0 else "overlapped"
                found["with_copy" if step.number % every == 0 else kind].append(took_ms)
    # Each checkpoint has logged the copy, and then the write.
    say({**found, "copy": logged[0::2], "write": logged[1::2]})


def measure_checkpoints(options: dict[str, Any]) -> None:
    """Print a line of JSON about checkpoints, as rank 0 has seen them."""
    with sf.Fleet(make_supplier) as fleet, tempfile.TemporaryDirectory(dir=options["folder"]) as folder:
        options["frontend"] = fleet.endpoints.frontend
        options["store"], options["checkpoints"] = f"{folder}/store", f"{folder}/checkpoints"
        with ranks.start(train_with_checkpoints, options["ranks"], options) as started:
            for pipe in started.pipes:
                pipe.poll(600)
            results = [pipe.recv() for pipe in started.pipes]
    if raised := [one for one in results if isinstance(one, ranks.Raised)]:
        raise SystemExit(raised[0].trace)
    found = results[0]
    medians = {f"{name}_ms": round(statistics.median(values), 2) for name, values in found.items() if values}
    n = {name: len(values) for name, values in found.items()}
    load = round(os.getloadavg()[0], 1)
    sizes = {"ranks": options["ranks"], "megabytes": options["checkpoint_mb"]}
    print(json.dumps({**sizes, **medians, "n": n, "load": load}))


def make_slow_supplier(sample_ms: float, n_made: str) -> sf.Supplier:
    """A supplier of samples that take some time, each of which adds a byte to a file."""

    def generate(product_id: str, n: int, sequences: tuple[int, ...]) -> dict[str, torch.Tensor]:
        time.sleep(n * sample_ms / 1000)
        with open(n_made, "ab") as file:
            file.write(bytes(n))
        return {"x": torch.ones(n, WIDTH)}

    return sf.Supplier(batch_generator_fn=generate, product_ids=["1"], batch_config=CONFIG)


def train_until_killed(say: Callable[[Any], None], rank: int, size: int, options: dict[str, Any]) -> None:
    """Make steps, and report each: time, number, ranks, what was kept of samples that were ordered."""
    model, state = training()
    data = sf.LiveData(
        "1", CONFIG, global_batch_size=GLOBAL, micro_batch_size=MICRO, endpoint=options["frontend"]
    )
    with sf.Job("job", data, state, coordinator=options["address"]) as job:
        for step in job.steps(10**9):
            with step:
                for batch in step.batches():
                    step.backward(model(batch["x"]).mean())
                    time.sleep(options["step_ms"] * job.size / 1000 / N_MICRO)
            if step.is_committed:
                say((time.monotonic(), step.number, job.size, job._parts.batches.kept))


def measure_kills(options: dict[str, Any]) -> None:
    """Print a line of JSON about ranks that are killed."""
    n_ranks, chance = options["ranks"], random.Random(0)
    pauses, n_kept = [], {"fewer": (0, 0), "more": (0, 0)}
    with contextlib.ExitStack() as running:
        n_made = running.enter_context(tempfile.NamedTemporaryFile()).name
        make = functools.partial(make_slow_supplier, options["sample_ms"], n_made)
        options["frontend"] = running.enter_context(sf.Fleet(make, n_workers=2)).endpoints.frontend
        sizes = ("--min-workers", str(max(1, n_ranks - 1)), "--max-workers", str(n_ranks))
        options["address"] = running.enter_context(Coordinator("--job", "job", *sizes))

        def start() -> ranks.Ranks:
            return running.enter_context(ranks.start(train_until_killed, 1, options))

        def until(size: int) -> list[Any]:
            """Wait until each rank has committed a step among so many; the last reports."""
            found = []
            for one in alive:
                while (said := one.receive(0))[2] != size:
                    pass
                found.append(said)
            return found

        def note(kind: str, reports: list[Any]) -> None:
            kept, dropped = map(sum, zip(n_kept[kind], *(one[3] for one in reports), strict=True))
            n_kept[kind] = kept, dropped

        alive = [start() for _ in range(n_ranks)]
        until(n_ranks)
        for _ in range(options["kills"]):
            time.sleep(1 + chance.random())
            victim = alive.pop(chance.randrange(n_ranks))
            victim.processes[0].kill()
            killed_s = time.monotonic()
            reports = until(n_ranks - 1)
            pauses.append(1000 * (min(one[0] for one in reports) - killed_s))
            note("fewer", reports)
            alive.append(start())
            note("more", until(n_ranks)[:-1])
        n_trained = GLOBAL * until(n_ranks)[0][1]
        made = os.path.getsize(n_made) / n_trained
    kept = {f"{n_ranks - 1 if kind == 'fewer' else n_ranks}": n for kind, n in n_kept.items()}
    print(
        json.dumps(
            {
                "ranks": n_ranks,
                "sample_ms": options["sample_ms"],
                "pause_ms": [round(one) for one in sorted(pauses)],
                "kept_and_dropped_at_ranks": kept,
                "made_per_trained": round(made, 3),
                "load": round(os.getloadavg()[0], 1),
            }
        )
    )


def main() -> None:
    """Measure, and print a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1, choices=(1, 2, 3, 4), help="ranks (%(default)s)")
    parser.add_argument("--step-ms", type=float, default=20.0, help="length of a step (%(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="of each turn (%(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="turns of each (%(default)s)")
    parser.add_argument(
        "--micro-batches", type=int, default=N_MICRO, help="of a step, on all ranks (%(default)s)"
    )
    parser.add_argument("--checkpoint-mb", type=int, default=0, help="measure checkpoints of this size, MB")
    parser.add_argument("--folder", help="folder for checkpoints (default: that of temporary files)")
    parser.add_argument("--kills", type=int, default=0, help="measure so many deaths of a rank of --ranks")
    parser.add_argument(
        "--sample-ms", type=float, default=0.0, help="time for a sample, of --kills (%(default)s)"
    )
    options = vars(parser.parse_args())
    if options["kills"]:
        measure_kills(options)
        return
    if options["checkpoint_mb"]:
        measure_checkpoints(options)
        return
    n_ranks = options["ranks"]
    with contextlib.ExitStack() as running:
        fleet = running.enter_context(sf.Fleet(make_supplier))
        options["frontend"] = fleet.endpoints.frontend
        options["coordinators"] = [
            running.enter_context(Coordinator("--job", name, "--world-size", str(n_ranks)))
            for name in ("hand", "job")
            if n_ranks > 1
        ]
        with ranks.start(train, n_ranks, options) as started:
            results = []
            for pipe in started.pipes:
                pipe.poll(600)
                results.append(pipe.recv())
    if raised := [one for one in results if isinstance(one, ranks.Raised)]:
        raise SystemExit(raised[0].trace)
    medians = {}
    for name in results[0]:
        # A step ends with its slowest rank.
        walls = [max(wall for wall, _ in step) for step in zip(*(one[name] for one in results), strict=True)]
        medians[f"{name}_ms"] = round(statistics.median(walls), 3)
        cpus = [cpu for one in results for _, cpu in one[name]]
        medians[f"{name}_cpu_ms"] = round(statistics.median(cpus), 3)
    more = round(100 * (medians["job_ms"] / medians["hand_ms"] - 1), 2)
    load = round(os.getloadavg()[0], 1)
    n = options["rounds"] * options["steps"]
    print(json.dumps({"ranks": n_ranks, "n": n, **medians, "more_percent": more, "load": load}))


if __name__ == "__main__":
    main()
