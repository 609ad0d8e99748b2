"""Kill each kind of process of a training on live samples, and then all of them: the loss keeps to its curve.

    python examples/distill_elastic_live.py

Two teachers distort and label handwritten digits while two ranks of a `Job` train a student on them, beside a broker and a
coordinator. The training runs twice: undisturbed; and with a rank, a teacher, the broker and the coordinator killed
(SIGKILL) and started again, one after the other, and at last all of them at once, which begin again with a checkpoint.
Every sample number of a step is trained once, so weights have the same bits after each step of both runs.

A sum of two micro-batches has the same bits on one rank and on two. With more of them a lost rank changes the rounding.
"""

import argparse
import contextlib
import hashlib
import io
import multiprocessing
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # The imports below take seconds; until main() listens, Ctrl-C ends the process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import softs_fast as sf
from digits_report import HARD, SOFT, STYLE, SUPPLY
from distill_digits import DISTORTION, PRODUCT, SAMPLE, Scans, distort, load_scans, make_student
from softs_fast.cli import main as softs_fast

PICTURE = Path("demo-output/distill_elastic_live.png")
N_RANKS, N_TEACHERS = 2, 2
GLOBAL_BATCH, CALL = 32, 8  # samples of a step, and of a call of a teacher at most
VICTIMS = ("rank", "teacher", "broker", "coordinator", "everything")
# Ranks that say nothing for so long hang.
WATCHDOG_S = 240.0


@dataclass
class Run:
    """One training.

    Attributes:
        losses: Mean losses by step.
        sizes: Number of ranks by step.
        digests: Digests of the weights after a step, on any rank and each time it was committed.
        kills: Step that was committed last, and what was killed then.
    """

    losses: dict[int, float] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    digests: dict[int, set[str]] = field(default_factory=dict)
    kills: list[tuple[int, str]] = field(default_factory=list)

    def note(self, step: int, size: int, loss: float, digest: str) -> None:
        """Note what a rank says."""
        self.losses[step], self.sizes[step] = loss, size
        self.digests.setdefault(step, set()).add(digest)


def main() -> int:
    """Run the example; returns the exit code, 130 after Ctrl-C."""
    options = parse_options()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    # Processes are forks of a server that has imported what takes long.
    multiprocessing.set_forkserver_preload(
        ["torch", "torch._dynamo", "grpc", "softs_fast.cli", "softs_fast.job.job"]
    )
    try:
        return run(options)
    except KeyboardInterrupt:
        print(
            "\ninterrupted: ranks, teachers, broker and coordinator stopped, shared memory freed",
            file=sys.stderr,
        )
        return 130


def run(options: argparse.Namespace) -> int:
    """Train twice, compare, draw."""
    torch.manual_seed(options.seed)
    scans = load_scans(options.seed)
    message = io.BytesIO()
    taught = {"teacher": make_teacher(scans).state_dict(), "x": scans.train_x, "digit": scans.train_digit}
    torch.save(taught, message)

    print(f"{options.steps} steps, undisturbed ...", flush=True)
    undisturbed = train(options, message.getvalue(), {})
    print(f"{options.steps} steps, with kills ...", flush=True)
    n = len(VICTIMS) + 1
    kills = {options.steps * (place + 1) // n: victim for place, victim in enumerate(VICTIMS)}
    disturbed = train(options, message.getvalue(), kills)

    are_equal = disturbed.digests == undisturbed.digests and all(
        len(one) == 1 for one in disturbed.digests.values()
    )
    print(
        f"the same weights, to the bit, after each of {options.steps} steps of both runs"
        if are_equal
        else "DIFFERENT WEIGHTS"
    )
    options.output.parent.mkdir(parents=True, exist_ok=True)
    draw(undisturbed, disturbed, options.output)
    print(f"loss {disturbed.losses[1]:.2f} -> {disturbed.losses[options.steps]:.2f}")
    print(f"picture: {options.output}")
    return 0 if are_equal else 1


def train(options: argparse.Namespace, taught: bytes, kills: dict[int, str]) -> Run:
    """Start all processes, kill what `kills` names after which step, and collect what the ranks say."""
    found = Run()
    with contextlib.ExitStack() as running:
        site = Site(options, taught, found, running)
        while site.ranks:
            ready = wait(list(site.ranks), WATCHDOG_S)
            if not ready:
                raise RuntimeError(f"no rank has said anything for {WATCHDOG_S:g} s")
            pipe = next(one for one in site.ranks if one in ready)
            try:
                step, size, loss, digest = pipe.recv()
            except EOFError:
                rank = site.ranks.pop(pipe)
                rank.join()
                if rank.exitcode:
                    raise RuntimeError("a rank has failed; its error is above") from None
                continue
            if step not in found.losses and step % max(1, options.steps // 5) == 0:
                print(f"  step {step:4} of {options.steps}, {size} ranks: loss {loss:.3f}", flush=True)
            found.note(step, size, loss, digest)
            if step in kills:
                victim = kills.pop(step)
                print(f"  step {step:4}: {victim} is killed, and started again", flush=True)
                site.kill(victim)
                found.kills.append((step, victim))
    return found


class Site:
    """All processes of a training, which end with a block.

    Attributes:
        ranks: Process of each rank, by the pipe through which it reports.
    """

    def __init__(
        self, options: argparse.Namespace, taught: bytes, found: Run, running: contextlib.ExitStack
    ) -> None:
        self._options, self._found = options, found
        folder = self._folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="softs-")))
        self._frontend, backend = (f"ipc://{folder}/{name}" for name in ("front", "back"))
        self._address = f"127.0.0.1:{free_port()}"
        broker = ("broker", "--frontend", self._frontend, "--backend", backend)
        coordinator = (
            *("coordinator", "run", "--listen", self._address, "--state", f"{folder}/state"),
            *("--job", "digits", "--min-workers", "1", "--max-workers", str(N_RANKS)),
        )
        # What runs in a process of each kind, and its arguments.
        self._kinds: dict[str, tuple[Callable[..., None], tuple[Any, ...]]] = {
            "broker": (serve, broker),
            "coordinator": (serve, coordinator),
            "teacher": (teach, (taught, options.teacher_s, backend)),
        }
        self._others: dict[str, list[Any]] = {kind: [] for kind in self._kinds}
        self.ranks: dict[Connection, Any] = {}
        self._n_ranks = 0
        running.callback(self._kill_all)
        self._start_all()

    def kill(self, victim: str) -> None:
        """Kill a process, or all of them, and start others in its place."""
        if victim == "rank":
            self._kill_rank()
            self._start_rank()
        elif victim in self._kinds:
            self._kill(victim)
            self._start(victim)
        else:
            self._kill_all()
            # A coordinator that finds it waits for ranks that may live yet.
            (self._folder / "state").unlink()
            self._start_all()

    def _start_all(self) -> None:
        for kind in ("broker", "coordinator", *["teacher"] * N_TEACHERS):
            self._start(kind)
        for _ in range(N_RANKS):
            self._start_rank()

    def _kill_all(self) -> None:
        while self.ranks:
            self._kill_rank()
        for kind, running in self._others.items():
            while running:
                self._kill(kind)

    def _start(self, kind: str) -> None:
        self._others[kind].append(start(*self._kinds[kind]))

    def _kill(self, kind: str) -> None:
        process = self._others[kind].pop(0)
        process.kill()
        process.join()

    def _start_rank(self) -> None:
        # Any of the first two may come first, and have the weights that count. Later ones begin with others, and copy or
        # load what was trained.
        seed = self._options.seed + max(0, self._n_ranks - 1)
        self._n_ranks += 1
        here, there = multiprocessing.Pipe(duplex=False)
        arguments = (there, self._address, self._frontend, self._folder, self._options.steps, seed)
        self.ranks[here] = start(train_rank, arguments)
        there.close()

    def _kill_rank(self) -> None:
        pipe, rank = self.ranks.popitem()
        rank.kill()
        rank.join()
        # What it has said before counts.
        with pipe, contextlib.suppress(EOFError, OSError):
            while True:
                self._found.note(*pipe.recv())


def start(function: Callable[..., None], arguments: tuple[Any, ...]) -> Any:
    """Start a function in a process that ends with this one."""
    arguments = (function, *arguments)
    process = multiprocessing.get_context("forkserver").Process(
        target=with_parent, args=arguments, daemon=True
    )
    process.start()
    return process


def with_parent(function: Callable[..., None], *arguments: Any) -> None:
    """Call a function, and end with the parent even if that is killed."""
    parent: Any = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
    function(*arguments)


def serve(*arguments: str) -> None:
    """Be `softs-fast` with some arguments, in silence."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    with contextlib.redirect_stdout(io.StringIO()):
        sys.exit(softs_fast([*arguments, "--log-level", "error"]))


def free_port() -> int:
    """Return a port at which nothing listens, and which the kernel gives to no connection while the coordinator is away."""
    for port in random.SystemRandom().sample(range(20_000, 30_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port of 100 is free")


# --- The teachers' side ---


def make_teacher(scans: Scans) -> nn.Sequential:
    """Return a net of the student's kind that has learned the scans as they are."""
    teacher = make_student()
    weights = list(teacher.parameters())
    for _ in range(300):
        choice = torch.randint(len(scans.train_x), (64,))
        loss = F.cross_entropy(teacher(scans.train_x[choice]), scans.train_digit[choice])
        # The first optimizer of a process imports torch's compiler, for seconds.
        for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            weight.data -= 0.3 * gradient
    return teacher


def teach(message: bytes, teacher_s: float, backend: str) -> None:
    """Distort scans and label them with the teacher, both in `message`, until the process is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the teachers
    torch.set_num_threads(1)
    taught = torch.load(io.BytesIO(message), weights_only=True)
    teacher = make_student()
    teacher.load_state_dict(taught["teacher"])

    def sample(number: int) -> tuple[Tensor, Tensor, Tensor]:
        torch.manual_seed(number)
        choice = torch.randint(len(taught["x"]), (1,))
        x = distort(taught["x"][choice], DISTORTION)
        return x, teacher(x).softmax(dim=1), taught["digit"][choice]

    @torch.inference_mode()
    def label(product_id: str, n: int, sequences: tuple[int, ...]) -> dict[str, Tensor]:
        time.sleep(teacher_s)
        # One by one: the bits of a product of matrices may depend on the number of rows.
        x, y, digit = (torch.cat(parts) for parts in zip(*map(sample, sequences), strict=True))
        return {"x": x, "y": y, "digit": digit}

    with sf.Supplier(
        batch_generator_fn=label, product_ids=[PRODUCT], batch_config=SAMPLE, max_batch=CALL, endpoint=backend
    ) as supplier:
        supplier.wait()


# --- The ranks' side ---


def train_rank(pipe: Connection, address: str, frontend: str, folder: Path, n_steps: int, seed: int) -> None:
    """Train, and report each step that is committed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the ranks
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    student = make_student()
    optimizer = torch.optim.Adam(student.parameters(), lr=5e-3)
    data = sf.LiveData(
        PRODUCT, SAMPLE, global_batch_size=GLOBAL_BATCH, micro_batch_size=GLOBAL_BATCH // 2, endpoint=frontend
    )
    checkpoints = sf.Checkpoints(folder / "checkpoints", every=5)
    state = sf.TrainingState(student, optimizer)
    with sf.Job("digits", data, state, coordinator=address, checkpoints=checkpoints) as job:
        for step in job.steps(n_steps):
            with step:
                size = job.size
                for batch in step.batches():
                    step.backward(F.cross_entropy(student(batch["x"]), batch["y"]))
            if step.is_committed:
                pipe.send((step.number, size, step.loss, digest_of(student, optimizer)))


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
    """Draw the losses of both runs, and the number of ranks of the disturbed one, with the kills."""
    # Here and not above: ranks and teachers import this file too and draw nothing.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    steps = sorted(undisturbed.losses)
    with plt.rc_context(STYLE):
        figure, (losses, ranks) = plt.subplots(
            2, 1, figsize=(10, 5.2), dpi=130, layout="constrained", sharex=True, height_ratios=[5, 1]
        )
        losses.plot(
            steps,
            [undisturbed.losses[step] for step in steps],
            color=SUPPLY,
            lw=5,
            alpha=0.35,
            label="undisturbed",
        )
        losses.plot(steps, [disturbed.losses[step] for step in steps], color=SOFT, lw=1.2, label="with kills")
        losses.set(title="Loss by committed step, the same bits in both runs", ylabel="mean of a step")
        ranks.step(steps, [disturbed.sizes[step] for step in steps], where="mid", color=SOFT)
        ranks.set(ylabel="ranks", xlabel="step", ylim=(0, N_RANKS + 0.5), yticks=range(N_RANKS + 1))
        for step, victim in disturbed.kills:
            for panel in (losses, ranks):
                panel.axvline(step, color=HARD, ls="--", lw=1.2)
            losses.annotate(
                f" {victim}", (step, 0.98), xycoords=("data", "axes fraction"), color=HARD, va="top"
            )
        losses.legend(loc="lower left")
        figure.savefig(path)
        plt.close(figure)


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=300, help="of each run, at least 30 (%(default)s)")
    text = "seconds that a call of a teacher waits, for those of a larger one (%(default)s)"
    parser.add_argument("--teacher-s", type=float, default=0.05, help=text)
    parser.add_argument("--seed", type=int, default=0, help="of weights and split (%(default)s)")
    parser.add_argument("--output", type=Path, default=PICTURE, help="the picture (%(default)s)")
    options = parser.parse_args()
    if options.steps < 30:
        parser.error(f"--steps is {options.steps}; need 30, for a checkpoint before all are killed")
    return options


if __name__ == "__main__":
    sys.exit(main())
