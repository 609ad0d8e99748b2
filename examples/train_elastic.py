"""Kill a worker of four in the middle of a training, replace it, and end with the weights of an undisturbed training.

    python examples/train_elastic.py

Two workers on each of two hosts learn scikit-learn's handwritten digits. A coordinator tells them which of them are
members. The workers of a host share memory, hosts have connections of their own; here both hosts are this machine, and share
nothing because they have different names. The training runs twice: undisturbed, and with a worker that is killed
(SIGKILL) and replaced by a process with other weights, which copies those of the others. No step is lost, and none is
applied twice: both runs end with the same bits.
"""

import argparse
import contextlib
import functools
import hashlib
import multiprocessing
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # The imports below take seconds; until main() listens, Ctrl-C ends the process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from digits_report import HARD, SOFT, STYLE, SUPPLY
from softs_fast.coordination.node import TrainingState, WorkerNode, memory_engine

HOSTS = ("a", "a", "b", "b")  # of each worker
VICTIM = 3
BATCH_SIZE, LEARNING_RATE = 128, 3e-3  # of all workers together
PICTURE = Path("demo-output/train_elastic.png")
# A worker that says nothing for so long hangs.
WATCHDOG_S = 120.0

Scans = tuple[NDArray[np.float32], NDArray[np.int64]]


@dataclass
class Worker:
    """A process that trains, seen from the parent."""

    number: int
    process: Any
    pipe: Connection


@dataclass
class Run:
    """One training.

    Attributes:
        losses: Losses of all workers, by step.
        spans: Worker of each process, and for each of its epochs the number, first and last second of a step.
        killed_s: Time at which a worker was killed, seconds.
        digests: Digests of the weights and the optimizer at the end, by worker.
    """

    losses: dict[int, float] = field(default_factory=dict)
    spans: list[tuple[int, dict[int, tuple[float, float]]]] = field(default_factory=list)
    killed_s: float | None = None
    digests: dict[int, str] = field(default_factory=dict)


def main() -> int:
    """Run the example; returns the exit code, 130 after Ctrl-C."""
    options = parse_options()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Workers are forks of a server that has imported what takes long.
    multiprocessing.set_forkserver_preload(["torch", "softs_fast.coordination.node"])
    try:
        return run(options)
    except KeyboardInterrupt:
        print("\ninterrupted: workers and coordinator stopped, shared memory freed", file=sys.stderr)
        return 130


def run(options: argparse.Namespace) -> int:
    """Train twice, compare, draw."""
    print(f"{options.steps} steps, undisturbed ...", flush=True)
    scans = load_scans()
    undisturbed = train(options, scans, kill_at=None)
    kill_at = options.steps // 2
    print(f"{options.steps} steps; worker {VICTIM} is killed after step {kill_at} ...", flush=True)
    disturbed = train(options, scans, kill_at=kill_at)
    digests = {*undisturbed.digests.values(), *disturbed.digests.values()}
    for name, one in (("undisturbed", undisturbed), ("disturbed", disturbed)):
        print(f"{name + ':':13}weights {' '.join(sorted(set(one.digests.values())))} on all workers")
    print("the same bits" if len(digests) == 1 else "DIFFERENT WEIGHTS")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    draw(undisturbed, disturbed, options.output)
    print(f"picture: {options.output}")
    return 0 if len(digests) == 1 else 1


def load_scans() -> Scans:
    """Return scans and digits; float32 [n, 64], int64 [n]."""
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    return images.astype(np.float32) / 16, digits.astype(np.int64)


def train(options: argparse.Namespace, scans: Scans, kill_at: int | None) -> Run:
    """Start a coordinator and the workers, kill one of them if told, and collect what they say."""
    found = Run()
    with coordinator() as address, contextlib.ExitStack() as running:
        start = functools.partial(start_worker, running, address, options.steps, scans)
        workers = [start(number, seed=options.seed) for number in range(len(HOSTS))]
        spans: dict[Connection, dict[int, tuple[float, float]]] = {}
        began_s = 0.0
        while workers:
            ready = wait([worker.pipe for worker in workers], WATCHDOG_S)
            if not ready:
                raise RuntimeError(f"no worker has said anything for {WATCHDOG_S:g} s")
            for worker in [one for one in workers if one.pipe in ready]:
                try:
                    at_s, step, epoch, loss, digest = worker.pipe.recv()
                except EOFError:
                    workers.remove(worker)
                    worker.process.join()
                    if worker.number not in found.digests and worker.process.exitcode != -signal.SIGKILL:
                        raise RuntimeError(
                            f"worker {worker.number} has ended without a result; its error is above"
                        ) from None
                    continue
                if digest:
                    found.digests[worker.number] = digest
                    continue
                began_s = began_s or at_s
                at_s -= began_s
                if worker.pipe not in spans:
                    spans[worker.pipe] = {}
                    found.spans.append((worker.number, spans[worker.pipe]))
                first_s = spans[worker.pipe].get(epoch, (at_s, at_s))[0]
                if worker.number == 0 and epoch > 1 and first_s == at_s:
                    print(
                        f"epoch {epoch}: step {step} is committed {at_s - (found.killed_s or 0):.2f} s after the kill"
                    )
                spans[worker.pipe][epoch] = (first_s, at_s)
                if worker.number == 0:
                    found.losses[step] = loss
                    if step % max(1, options.steps // 5) == 0:
                        print(
                            f"  step {step:4} of {options.steps}, epoch {epoch}: loss {loss:.3f}", flush=True
                        )
                if worker.number == VICTIM and step == kill_at and found.killed_s is None:
                    found.killed_s = time.monotonic() - began_s
                    worker.process.kill()
                    print(f"worker {VICTIM} is killed; another process takes its place", flush=True)
                    workers.append(start(VICTIM, seed=options.seed + 1))
    return found


@contextlib.contextmanager
def coordinator() -> Iterator[str]:
    """Run a coordinator that waits for all workers; yield its address."""
    command = [
        sys.executable,
        "-m",
        "softs_fast",
        "coordinator",
        "run",
        "--listen",
        "127.0.0.1:0",
        "--log-level",
        "error",
    ]
    process = subprocess.Popen(
        [*command, "--world-size", str(len(HOSTS))], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().removeprefix("coordinator ").strip()
    finally:
        process.terminate()
        process.communicate()


def start_worker(
    running: contextlib.ExitStack, address: str, n_steps: int, scans: Scans, number: int, *, seed: int
) -> Worker:
    """Start a worker, which ends with the block."""
    context = multiprocessing.get_context("forkserver")
    here, there = context.Pipe(duplex=False)
    arguments = (there, address, n_steps, scans, number, seed)
    process = context.Process(target=train_worker, args=arguments, daemon=True)
    process.start()
    there.close()

    def end() -> None:
        process.kill()
        process.join()
        here.close()

    running.callback(end)
    return Worker(number, process, here)


# --- The workers' side ---


def train_worker(pipe: Connection, address: str, n_steps: int, scans: Scans, number: int, seed: int) -> None:
    """Train, and report each step that is committed, and the weights at the end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the workers
    torch.set_num_threads(1)
    x, digit = map(torch.from_numpy, scans)
    # Only the weights of the first worker count: the others copy them.
    torch.manual_seed(seed if number == 0 else seed + 100 + number)
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    engine = functools.partial(memory_engine, host=HOSTS[number])
    with WorkerNode(address, TrainingState(model, optimizer), seat=number, engine=engine) as node:
        while node.committed < n_steps:
            with node.step() as step:
                rows = batch_of(step.number, node.rank, node.size, len(x))
                loss = F.cross_entropy(model(x[rows]), digit[rows])
                loss.backward()
                # A loss of a worker in this call, too, ends the step without committing it.
                mean = loss.detach().clone()
                assert node.strategy is not None
                node.strategy.all_reduce(mean, "mean")
            if step.is_committed:
                pipe.send((time.monotonic(), step.number, step.epoch, float(mean), ""))
        pipe.send((time.monotonic(), n_steps, node.epoch, 0.0, digest_of(model, optimizer)))


def batch_of(step: int, rank: int, size: int, n_samples: int) -> Tensor:
    """Return the rows of a worker's part of a batch, which depends on the step and not on what came before."""
    order = torch.randperm(n_samples, generator=torch.Generator().manual_seed(step))
    return order[rank:BATCH_SIZE:size]


def digest_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Return a hash of all weights, and of what the optimizer keeps for them."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(parameter.detach().numpy().tobytes())
        for _, value in sorted(optimizer.state[parameter].items()):
            found.update(torch.as_tensor(value).numpy().tobytes())
    return found.hexdigest()[:16]


# --- The picture ---


def draw(undisturbed: Run, disturbed: Run, path: Path) -> None:
    """Draw the losses of both runs, and the epochs of the disturbed one."""
    # Here and not above: the workers import this file too and draw nothing.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with plt.rc_context(STYLE):
        figure, (losses, epochs) = plt.subplots(1, 2, figsize=(13, 4.2), dpi=130, layout="constrained")
        figure.suptitle(
            "A worker of four is killed and replaced: no step is lost",
            fontsize=15,
            fontweight="bold",
            x=0.008,
            ha="left",
        )
        draw_losses(losses, undisturbed, disturbed)
        draw_epochs(epochs, disturbed)
        figure.savefig(path)
        plt.close(figure)


def draw_losses(panel: Any, undisturbed: Run, disturbed: Run) -> None:
    """Draw the losses of both runs by step."""
    for one, title, style in (
        (undisturbed, "undisturbed", {"color": SUPPLY, "lw": 5, "alpha": 0.35}),
        (disturbed, "a worker is killed", {"color": SOFT, "lw": 1.2}),
    ):
        steps = sorted(one.losses)
        panel.plot(steps, [one.losses[step] for step in steps], label=title, **style)
    panel.axvline(len(disturbed.losses) // 2, color=HARD, ls="--", lw=1.2, label="fence")
    panel.set(title="loss, the same in both runs", xlabel="step", ylabel="mean of all workers", yscale="log")
    panel.legend(loc="upper right")


def draw_epochs(panel: Any, disturbed: Run) -> None:
    """Draw when each worker made steps, and in which epoch."""
    colors = (SOFT, SUPPLY, "#8a5fbf", "#555555")
    drawn = set()
    for number, spans in disturbed.spans:
        for epoch, (first_s, last_s) in spans.items():
            panel.barh(
                number,
                max(last_s - first_s, 0.02),
                left=first_s,
                height=0.5,
                color=colors[(epoch - 1) % len(colors)],
                label=None if epoch in drawn else f"epoch {epoch}",
            )
            drawn.add(epoch)
    if disturbed.killed_s is not None:
        panel.plot(disturbed.killed_s, VICTIM, "X", color=HARD, ms=12, label=f"worker {VICTIM} is killed")
        panel.axvline(disturbed.killed_s, color=HARD, ls="--", lw=1.2, label="fence")
    names = [f"worker {number}, host {host}" for number, host in enumerate(HOSTS)]
    panel.set_yticks(range(len(HOSTS)), names)
    panel.set(title="steps by epoch", xlabel="seconds")
    panel.invert_yaxis()
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=4)


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=400, help="of each run, at least 20 (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights (%(default)s)")
    parser.add_argument("--output", type=Path, default=PICTURE, help="the picture (%(default)s)")
    options = parser.parse_args()
    if options.steps < 20:
        parser.error(f"--steps is {options.steps}; need 20, for a worker to be killed in the middle")
    return options


if __name__ == "__main__":
    sys.exit(main())
