"""Train four ranks, of which one is poisoned for a while, with three policies between them, side by side.

    python examples/averaging_digits.py

A supplier process distorts scikit-learn's scans of handwritten digits; each rank gets other samples of its stream. In
the second quarter of the run rank 3 has wrong labels and ten times the learning rate. Three times the same training:
without averaging rank 3 is spoilt; with the mean of all ranks it spoils the others, too; with selective averaging it
takes over the weights of the others while it is the worst, and no rank waits for another one.
"""

import argparse
import contextlib
import functools
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # The imports below take seconds; until main() listens, Ctrl-C ends the process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import softs_fast as sf
from digits_report import HARD, SOFT, STYLE
from softs_fast.averaging import AverageAll, Event, Rules, SelectiveAveraging
from softs_fast.collectives import ShmStrategy

RANKS, POISONED = 4, 3
POLICIES = {"none": "no averaging", "all": "mean of all ranks", "selective": "selective averaging"}
EVERY = 20  # steps from one mean, or one check, to the next
BATCH_SIZE, LEARNING_RATE = 32, 3e-3
TEST_SCANS = 600
WAIT_S = 120.0
PICTURE = Path("demo-output/averaging_digits.png")

SAMPLE = sf.BatchConfig([sf.TensorSpec("x", (64,), "float32"), sf.TensorSpec("digit", (), "int64")])


@dataclass
class Curve:
    """One rank in one policy: its accuracy on held-out scans, and what it took over."""

    steps: list[int] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    events: list[str] = field(default_factory=list)


Curves = dict[str, list[Curve]]


def main() -> int:
    """Run the example; returns the exit code, 130 after Ctrl-C."""
    options = parse_options()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run(options)
    except KeyboardInterrupt:
        print("\ninterrupted: ranks, supplier and broker stopped, shared memory freed", file=sys.stderr)
        return 130
    return 0


def run(options: argparse.Namespace) -> None:
    """Start the supplier and the ranks, collect their curves, report."""
    print(f"{RANKS} ranks, {options.steps} steps with each of {len(POLICIES)} policies ...", flush=True)
    with (
        sf.Fleet(functools.partial(make_supplier, options.seed), n_workers=1) as fleet,
        tempfile.TemporaryDirectory(prefix="averaging-") as folder,
        running_ranks(fleet.endpoints.as_environment(), folder, options) as pipes,
    ):
        received = [receive(rank, pipe) for rank, pipe in enumerate(pipes)]
    curves = {policy: [of_rank[policy] for of_rank in received] for policy in POLICIES}
    for event in curves["selective"][POISONED].events[:3]:
        print(event)
    print(table(curves))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    draw(curves, options.steps, options.output)
    print(f"picture: {options.output}")


@contextlib.contextmanager
def running_ranks(
    environment: dict[str, str], folder: str, options: argparse.Namespace
) -> Iterator[list[Connection]]:
    """Start a process for each rank; they have ended afterwards."""
    context = multiprocessing.get_context("spawn")
    processes, pipes = [], []
    try:
        for rank in range(RANKS):
            here, there = context.Pipe(duplex=False)
            arguments = (there, rank, environment, folder, options.steps, options.seed)
            process = context.Process(target=train_rank, args=arguments, daemon=True)
            process.start()
            there.close()
            processes.append(process)
            pipes.append(here)
        yield pipes
    finally:
        for process in processes:
            process.kill()
            process.join()


def receive(rank: int, pipe: Connection) -> dict[str, Curve]:
    """Return the curves of a rank."""
    try:
        curves: dict[str, Curve] = pipe.recv()
    except EOFError:
        raise RuntimeError(f"rank {rank} has ended without a result; its error is above") from None
    return curves


# --- The supplier's side ---


def make_supplier(seed: int) -> sf.Supplier:
    """Return a supplier of distorted scans."""
    torch.set_num_threads(1)
    x, digit, _, _ = load_scans(seed)

    def distort(product_id: str, n: int, sequences: tuple[int, ...]) -> dict[str, Tensor]:
        random = torch.Generator().manual_seed(seed + 1 + sequences[0])
        choice = torch.randint(len(x), (n,), generator=random)
        noise = 0.15 * torch.randn((n, x.shape[1]), generator=random)
        return {"x": x[choice] + noise, "digit": digit[choice]}

    return sf.Supplier(batch_generator_fn=distort, product_ids=["digits"], batch_config=SAMPLE)


def load_scans(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return scans and digits for the training, and those that are held out; float32 [n, 64], int64 [n]."""
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(seed))
    x, digit = torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(digits)[order]
    return x[TEST_SCANS:], digit[TEST_SCANS:], x[:TEST_SCANS], digit[:TEST_SCANS]


# --- The ranks' side ---


def train_rank(
    pipe: Connection, rank: int, environment: dict[str, str], folder: str, n_steps: int, seed: int
) -> None:
    """Train with each policy in turn, and send the curves."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the ranks
    torch.set_num_threads(1)
    os.environ.update(environment)
    _, _, test_x, test_digit = load_scans(seed)
    curves = {}
    with ShmStrategy(timeout_s=WAIT_S).init(rank, RANKS, folder) as strategy:
        for policy in POLICIES:
            torch.manual_seed(seed)
            model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
            optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
            curves[policy] = curve = Curve()
            with (
                sf.SoftDataLoader(
                    "digits",
                    batch_config=SAMPLE,
                    batch_size=BATCH_SIZE,
                    num_slots=4 * BATCH_SIZE,
                    ordered=True,
                    rank=rank,
                    world_size=RANKS,
                    steps_per_epoch=n_steps,
                    request_timeout=WAIT_S,
                ) as loader,
                averaging(policy, model, optimizer, strategy, f"{folder}/{policy}") as average,
            ):
                for step, batch in enumerate(loader, 1):
                    is_poisoned = rank == POISONED and n_steps // 4 < step <= n_steps // 2
                    digit = (batch["digit"] + 1) % 10 if is_poisoned else batch["digit"]
                    optimizer.param_groups[0]["lr"] = LEARNING_RATE * (10 if is_poisoned else 1)
                    optimizer.zero_grad()
                    F.cross_entropy(model(batch["x"]), digit).backward()
                    optimizer.step()
                    measured = accuracy(model, test_x, test_digit) if step % (EVERY // 4) == 0 else None
                    event = average(measured)
                    if event is not None:
                        curve.events.append(f"rank {rank}, step {step}: {event.reason}")
                    if measured is not None:
                        curve.steps.append(step)
                        curve.accuracy.append(measured)
                # A rank that leaves donates no more. And all begin the next policy at the same time.
                strategy.barrier()
    pipe.send(curves)


@contextlib.contextmanager
def averaging(
    policy: str, model: nn.Module, optimizer: torch.optim.Optimizer, strategy: ShmStrategy, meeting: str
) -> Iterator[Callable[[float | None], Event | None]]:
    """Yield what is called after each step, with the accuracy if it was measured; it may change the weights."""
    if policy == "selective":
        rules = Rules(every=EVERY, replace_worst=1 / RANKS, threshold=0.8, burn_in=EVERY)
        with SelectiveAveraging(model, optimizer, rules, meet=meeting, rank=strategy.rank) as selective:
            yield selective.step
    elif policy == "all":
        mean = AverageAll(model, strategy, every=EVERY)

        def average_all(_: float | None) -> None:
            mean.step()

        yield average_all
    else:
        yield lambda _: None


def accuracy(model: nn.Module, x: Tensor, digit: Tensor) -> float:
    """Return the share of scans that the model reads correctly."""
    with torch.inference_mode():
        return float((model(x).argmax(dim=1) == digit).float().mean())


# --- The report ---


def table(curves: Curves) -> str:
    """Return the closing table: accuracies at the end, and the lowest after the first quarter."""
    rows = [("", "poisoned rank", "other ranks", "lowest of the others")]
    for policy, title in POLICIES.items():
        others = [curve for rank, curve in enumerate(curves[policy]) if rank != POISONED]
        mean = sum(curve.accuracy[-1] for curve in others) / len(others)
        lowest = min(min(curve.accuracy[len(curve.accuracy) // 4 :]) for curve in others)
        rows.append((title, f"{curves[policy][POISONED].accuracy[-1]:.1%}", f"{mean:.1%}", f"{lowest:.1%}"))
    return "\n".join(f"{name:22}{poisoned:>15}{others:>15}{low:>22}" for name, poisoned, others, low in rows)


def draw(curves: Curves, n_steps: int, path: Path) -> None:
    """Draw the accuracy of each rank, one panel for each policy."""
    # Here and not above: ranks and supplier import this file too and draw nothing.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(
            1, len(POLICIES), figsize=(13, 4.2), dpi=130, layout="constrained", sharey=True
        )
        figure.suptitle(
            "Four ranks learn digits; one of them is poisoned for a while",
            fontsize=15,
            fontweight="bold",
            x=0.008,
            ha="left",
        )
        for panel, (policy, title) in zip(panels, POLICIES.items(), strict=True):
            draw_policy(panel, curves[policy], title, n_steps)
        panels[0].set_ylabel(f"accuracy on {TEST_SCANS} held-out scans")
        panels[0].legend(loc="lower right")
        figure.savefig(path)
        plt.close(figure)


def draw_policy(panel: Any, curves: list[Curve], title: str, n_steps: int) -> None:
    """Draw the ranks of one policy."""
    panel.axvspan(n_steps // 4, n_steps // 2, color=HARD, alpha=0.1, label="rank 3 is poisoned")
    for rank, curve in enumerate(curves):
        is_poisoned = rank == POISONED
        label = "rank 3" if is_poisoned else "ranks 0 to 2" if rank == 0 else None
        panel.plot(
            curve.steps,
            curve.accuracy,
            color=HARD if is_poisoned else SOFT,
            lw=2 if is_poisoned else 1.2,
            label=label,
        )
    panel.set(title=title, xlabel="step", ylim=(0, 1.02))


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=600, help="of each policy, at least 80 (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and samples (%(default)s)")
    parser.add_argument("--output", type=Path, default=PICTURE, help="the picture (%(default)s)")
    options = parser.parse_args()
    if options.steps < 80:
        parser.error(f"--steps is {options.steps}; the four quarters of the run need 80")
    return options


if __name__ == "__main__":
    sys.exit(main())
