"""Train on three machines, of which one dies and another one comes late, as if they were one.

    python examples/paramserver_digits.py

A parameter server and its workers, here as processes of one machine: three begin, one is killed in the first third of
the run, and another one joins in the second half. The server hands out samples, takes the gradients of all workers that
are there, and makes the steps. The same number of steps in one process, with as many samples each, is drawn beside it.

On machines of the internet each side is one command, and this file is the job of both:

    softs-fast paramserver run paramserver_digits:job --world-size 3 --rounds 120 --dataset-size 1197
    softs-fast paramserver worker INVITE paramserver_digits:job
"""

import argparse
import io
import multiprocessing
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # The imports below take seconds; until main() listens, Ctrl-C ends the process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from digits_report import HARD, SOFT, STYLE
from softs_fast.paramserver import (
    Invite,
    Job,
    Progress,
    RemoteOptimizer,
    RunConfig,
    RunOptions,
    Server,
    ServerOptions,
    WorkerOptions,
    import_package,
    order,
    train,
)

WORLD, BATCH_SIZE = 3, 32
TEST_SCANS = 600
LEASE_S = 3.0  # a dead worker holds up one round for so long
LOOK_EVERY_S = 0.01
WAIT_S = 150.0
REJOIN_TIMEOUT_S = 20.0
COMPUTING_S = 0.02  # the model is small; on real machines a gradient takes longer
PICTURE = Path("demo-output/paramserver_digits.png")


# --- The job: the server and each worker load it from this file ---


def job() -> Job:
    """Return what is trained."""
    return Job(model, loss, lambda: TensorDataset(*load_scans()[:2]), optimizer, evaluate=accuracy)


def model() -> nn.Module:
    """Return the first weights."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def loss(module: nn.Module, batch: Any) -> Tensor:
    """Return the mean loss of (scans, digits)."""
    return F.cross_entropy(module(batch[0]), batch[1])


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    """Return the server's optimizer."""
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def accuracy(module: nn.Module) -> float:
    """Return the share of held-out scans that a model reads correctly."""
    _, _, x, digit = load_scans()
    with torch.no_grad():
        return float((module(x).argmax(1) == digit).float().mean())


def load_scans() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return scans and digits for the training, and those that are held out; float32 [n, 64], int64 [n]."""
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    mixed = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
    x, digit = torch.tensor(images, dtype=torch.float32)[mixed] / 16, torch.tensor(digits)[mixed]
    return x[TEST_SCANS:], digit[TEST_SCANS:], x[:TEST_SCANS], digit[:TEST_SCANS]


# --- The demonstration ---


@dataclass
class Curve:
    """The training loss by version, and what happened at which."""

    versions: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    events: list[tuple[int, str]] = field(default_factory=list)


def main() -> int:
    """Run the example; returns the exit code, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=120, metavar="N", help="steps (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=PICTURE, metavar="FILE", help="the picture")
    options = parser.parse_args()
    if options.rounds < 12:
        parser.error(f"--rounds is {options.rounds}; a death and a late worker need 12")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run(options)
    except KeyboardInterrupt:
        print("\ninterrupted: server and workers stopped", file=sys.stderr)
        return 130
    return 0


def run(options: argparse.Namespace) -> None:
    """Train with a server and workers, then in one process, and report."""
    n_samples = len(load_scans()[0])
    with tempfile.TemporaryDirectory(prefix="paramserver-") as folder:
        output = Path(folder, "model.pth")
        files = ServerOptions(listen="127.0.0.1:0", state=Path(folder, "state"), output=output)
        config = RunConfig(rounds=options.rounds, batch_size=BATCH_SIZE)
        what = RunOptions(
            WORLD, options.rounds, dataset_size=n_samples, lost_after_s=LEASE_S, scale_rate="none"
        )
        with Server(job(), what, config, files) as server:
            curve = watch(server, options.rounds)
        shared = model()
        shared.load_state_dict(torch.load(output, weights_only=True))
    alone, alone_curve = train_alone(options.rounds, n_samples)
    for version, text in curve.events:
        print(f"version {version}: {text}")
    print(f"{'parameter server':20} {100 * accuracy(shared):.1f}%")
    print(f"{'one process':20} {100 * accuracy(alone):.1f}%")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    draw(curve, alone_curve, options.output)
    print(f"picture: {options.output}")


def watch(server: Server, rounds: int) -> Curve:
    """Start workers, kill one, start another one, and return the curve when the run is over."""
    context = multiprocessing.get_context("forkserver")
    # Imported once, for all workers.
    context.set_forkserver_preload(
        ["sklearn.datasets", "softs_fast.paramserver.worker.training", "digits_report"]
    )
    ready, late, late_joined = context.Barrier(WORLD + 1), context.Event(), context.Event()
    invite = str(server.invite)
    print(f"invite: {invite.partition('.')[0]}...@{server.invite.url}", flush=True)
    workers = [
        context.Process(target=work, args=(invite, rank, ready, late, late_joined), daemon=True)
        for rank in range(WORLD + 1)
    ]
    curve = Curve()
    try:
        for worker in workers:
            worker.start()
        wait_for(server, curve, rounds // 4)
        workers[0].kill()
        curve.events.append((curve.versions[-1], "worker 0 is killed"))
        wait_for(server, curve, rounds // 2)
        late.set()
        curve.events.append((curve.versions[-1], f"worker {WORLD} joins"))
        wait_for(server, curve, rounds)
        if not server.wait(WAIT_S):
            raise RuntimeError(f"the run has not ended within {WAIT_S:g} s")
    finally:
        for worker in workers:
            worker.join(0 if sys.exc_info()[0] else WAIT_S)
            worker.kill()
            worker.join()
    return curve


def wait_for(server: Server, curve: Curve, version: int) -> None:
    """Note the loss of each version up to this one."""
    tick = threading.Event()
    for _ in range(round(WAIT_S / LOOK_EVERY_S)):
        status = server.status()
        if status.loss is not None and (not curve.versions or status.version > curve.versions[-1]):
            curve.versions.append(status.version)
            curve.losses.append(status.loss)
        if status.version >= version and curve.versions:
            return
        tick.wait(LOOK_EVERY_S)
    raise RuntimeError(f"version {version} did not come within {WAIT_S:g} s: {server.status().waiting_for}")


class Joined(Progress):
    """Sets an event when the worker has joined."""

    def __init__(self, event: Any) -> None:
        super().__init__(io.StringIO())
        self._event = event

    def joined(self, optimizer: RemoteOptimizer) -> None:
        """The worker has joined."""
        super().joined(optimizer)
        self._event.set()


def work(invite: str, rank: int, ready: Any, late: Any, late_joined: Any) -> None:
    """Be a worker: what `softs-fast paramserver worker` does. The last one begins when `late` is set."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import_package("urllib3")
    here, is_late = job(), rank == WORLD

    def slow_loss(module: nn.Module, batch: Any) -> Tensor:
        time.sleep(COMPUTING_S)
        if late.is_set():
            # So small a run would be over before the late one has joined.
            late_joined.wait(WAIT_S)
        return here.loss(module, batch)

    ready.wait(WAIT_S)
    if is_late:
        late.wait(WAIT_S)
    progress = Joined(late_joined) if is_late else Progress(io.StringIO())
    slow, options = replace(here, loss=slow_loss), WorkerOptions(f"worker {rank}", REJOIN_TIMEOUT_S)
    train(slow, Invite.parse(invite), options, "cpu", progress)


def train_alone(rounds: int, n_samples: int) -> tuple[nn.Module, Curve]:
    """Train in one process: the same order of samples, as many per step as all workers had together."""
    module, curve = model(), Curve()
    step, (x, digit, _, _) = optimizer(module.parameters()), load_scans()
    size = WORLD * BATCH_SIZE
    indices = [i for epoch in range(rounds * size // n_samples + 1) for i in order(0, epoch, n_samples)]
    for version in range(1, rounds + 1):
        batch = indices[(version - 1) * size : version * size]
        step.zero_grad()
        value = loss(module, (x[batch], digit[batch]))
        value.backward()
        step.step()
        curve.versions.append(version)
        curve.losses.append(float(value.detach()))
    return module, curve


def draw(curve: Curve, alone: Curve, path: Path) -> None:
    """Write the picture."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
        axes.plot(alone.versions, alone.losses, color=HARD, label="one process", linewidth=1)
        axes.plot(curve.versions, curve.losses, color=SOFT, label="parameter server", linewidth=1)
        for version, text in curve.events:
            axes.axvline(version, color="#999999", linestyle=":", linewidth=1)
            axes.annotate(text, (version, 0.93), xycoords=("data", "axes fraction"), xytext=(4, 0),
                          textcoords="offset points", fontsize=9)  # fmt: skip
        axes.set(title="One worker dies, one comes late", xlabel="step", ylabel="training loss", yscale="log")
        axes.legend(loc="lower left")
        figure.savefig(path, dpi=120)
        plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
