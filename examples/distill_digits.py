"""Distil a convolutional teacher into a small student, live, over softs-fast.

Run it with `make demo`. A teacher learns scikit-learn's scans of handwritten digits for a few seconds and is
sent to supplier processes. They distort scans without end, label each one with the teacher's probabilities,
and write it to the student's shared memory. Two students start from the same weights and see the same images
at the same steps: one learns the teacher's probabilities (soft labels), the other the digit that the scan
showed before it was distorted (hard labels). Broker and students run in this process.
"""

import argparse
import contextlib
import io
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

if __name__ == "__main__":
    # The imports below take seconds; until main() listens, Ctrl-C ends the process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import softs_fast as sf
from digits_report import History, Window, draw, table
from processes import started

PRODUCT = "digits"
DISTORTION = 0.85
TEACHER_DISTORTION = 0.6
TEACHER_STEPS = 450
TEST_SCANS = 600
LEARNING_RATE = 6e-3
SUPPLY_TIMEOUT_S = 30.0
PICTURE = Path("demo-output/distill_digits.png")

SAMPLE = sf.BatchConfig(
    [
        sf.TensorSpec("x", (1, 8, 8), "float32"),  # a distorted scan, ink in 0..1
        sf.TensorSpec("y", (10,), "float32"),  # soft label: the teacher's probabilities
        sf.TensorSpec("digit", (), "int64"),  # hard label: what the scan showed before it was distorted
    ]
)


def main() -> int:
    """Run the demo; returns the exit code, 130 after Ctrl-C."""
    options = parse_options()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run(options)
    except KeyboardInterrupt:
        print("\ninterrupted: suppliers and broker stopped, shared memory freed", file=sys.stderr)
        return 130
    return 0


def run(options: argparse.Namespace) -> None:
    """Train the teacher, start the market, train both students, report."""
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)  # every process of the demo is one core's worth of work
    with contextlib.ExitStack() as stack:
        folder = options.endpoint_dir or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="softs-fast-"))
        )
        folder.mkdir(parents=True, exist_ok=True)
        endpoints = sf.EndpointConfig(f"ipc://{folder}/frontend.sock", f"ipc://{folder}/backend.sock")
        stack.enter_context(sf.Broker(endpoints))
        # Started first: they import torch while the teacher learns.
        suppliers = stack.enter_context(
            started(supply, *((options.seed + 1 + i, endpoints.backend) for i in range(options.suppliers)))
        )

        scans = load_scans(options.seed)
        print(f"teacher: {TEACHER_STEPS} steps on {len(scans.train_x):,} scans ...", flush=True)
        teacher = train_teacher(scans)
        message = io.BytesIO()
        torch.save({"teacher": teacher.state_dict(), "x": scans.train_x, "digit": scans.train_digit}, message)
        for pipe in suppliers:
            pipe.send_bytes(message.getbuffer())

        print(f"students: {options.steps:,} steps of {options.batch_size} fresh images", flush=True)
        student_soft = make_student()
        student_hard = make_student()
        student_hard.load_state_dict(student_soft.state_dict())
        loader = sf.SoftDataLoader(
            model_id=PRODUCT,
            endpoint=endpoints.frontend,
            batch_config=SAMPLE,
            medium_cls=sf.ShmMedium,
            num_slots=4 * options.batch_size,
            request_timeout=SUPPLY_TIMEOUT_S,
            batch_size=options.batch_size,
        )
        stack.callback(loader.soft_dataset.close)
        history = train_students(student_soft, student_hard, loader, scans, options.steps)

    teacher_accuracy = accuracy(teacher, scans.test_x, scans.test_digit)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    draw(history, teacher_accuracy, options.output)
    print(table(history, teacher_accuracy, weights(teacher), weights(student_soft)))
    print(f"picture: {options.output}")


# --- The supplier's side ---


def supply(seed: int, backend: str, pipe: Connection) -> None:
    """Run a supplier process: receive the teacher, serve samples until the pipe closes."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    with contextlib.suppress(EOFError):
        message = torch.load(io.BytesIO(pipe.recv_bytes()), weights_only=True)
        teacher = make_teacher()
        teacher.load_state_dict(message["teacher"])
        with sf.Supplier(
            generator_fn=LabelledScans(teacher, message["x"], message["digit"]),
            product_ids=[PRODUCT],
            endpoint=backend,
            medium_cls=sf.ShmMedium,
            slot_size=SAMPLE.nbytes(),
        ):
            pipe.recv_bytes()  # blocks until the other end closes


class LabelledScans:
    """The generator: distorts and labels `chunk` scans in one go, then hands them out one at a time."""

    def __init__(self, teacher: nn.Module, x: Tensor, digit: Tensor, chunk: int = 64) -> None:
        self.teacher = teacher
        self.x = x
        self.digit = digit
        self.chunk = chunk
        self._ready: list[bytes] = []

    def __call__(self, product_id: str) -> bytes:
        """Returns one encoded sample of SAMPLE."""
        if not self._ready:
            choice = torch.randint(len(self.x), (self.chunk,))
            x = distort(self.x[choice], DISTORTION)
            with torch.inference_mode():
                y = self.teacher(x).softmax(dim=1)
            self._ready = [
                SAMPLE.encode(x=x_i, y=y_i, digit=digit_i)
                for x_i, y_i, digit_i in zip(x, y, self.digit[choice], strict=True)
            ]
        return self._ready.pop()


# --- The student's side ---


def train_students(
    student_soft: nn.Module, student_hard: nn.Module, loader: sf.SoftDataLoader, scans: "Scans", steps: int
) -> History:
    """Train both students on the same batches; measures how long they wait for data."""
    from tqdm import tqdm

    optimizers = [torch.optim.Adam(student.parameters()) for student in (student_soft, student_hard)]
    batches = iter(loader)
    batch = next(batches)  # not timed: it waits for the suppliers' start
    history = History(n_test=len(scans.test_x), batch=batch)
    ends_of_windows = {round(steps * k / 30) for k in range(1, 31)}
    window = Window()

    # A terminal gets a bar that is updated often, a log file a line every few seconds.
    bar = tqdm(total=steps, unit="step", ncols=110, mininterval=0.2 if sys.stderr.isatty() else 5.0)
    clock = time.perf_counter()
    for step in range(1, steps + 1):
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - step / (steps + 1))
        window.loss_soft += train_step(student_soft, optimizers[0], batch["x"], batch["y"])
        window.loss_hard += train_step(student_hard, optimizers[1], batch["x"], batch["digit"])
        window.steps += 1
        window.samples += len(batch["x"])
        trained = time.perf_counter()
        batch = next(batches)
        fetched = time.perf_counter()
        window.training_s += trained - clock
        window.waiting_s += fetched - trained
        bar.update()

        if step in ends_of_windows:
            soft = accuracy(student_soft, scans.test_x, scans.test_digit)
            hard = accuracy(student_hard, scans.test_x, scans.test_digit)
            history.add(step, window, soft, hard)
            bar.set_postfix_str(
                f"{window.samples_per_s:,.0f} samples/s, starved {window.starvation:.0%}, "
                f"accuracy {soft:.1%} soft, {hard:.1%} hard",
                refresh=False,
            )
            window = Window()
        clock = time.perf_counter()
    bar.close()
    return history


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, label: Tensor) -> float:
    """One step of cross-entropy against `label`, float [batch, 10] or int64 [batch]; returns the loss."""
    loss = F.cross_entropy(model(x), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


@torch.inference_mode()
def accuracy(model: nn.Module, x: Tensor, digit: Tensor) -> float:
    """The share of `x` [n, 1, 8, 8] that `model` reads as `digit` [n]."""
    return (model(x).argmax(dim=1) == digit).float().mean().item()


# --- Data and models ---


@dataclass(frozen=True)
class Scans:
    """scikit-learn's 1,797 scans of handwritten digits: x float32 [n, 1, 8, 8] in 0..1, digit int64 [n]."""

    train_x: Tensor
    train_digit: Tensor
    test_x: Tensor
    test_digit: Tensor


def load_scans(seed: int) -> Scans:
    """Load the scans (they come with scikit-learn) and split them, digits in equal shares."""
    # Here and not above: suppliers import this file too and need neither scikit-learn nor matplotlib.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    parts = train_test_split(
        digits.images[:, None] / 16,
        digits.target,
        test_size=TEST_SCANS,
        stratify=digits.target,
        random_state=seed,
    )
    train_x, test_x, train_digit, test_digit = (torch.from_numpy(part) for part in parts)
    return Scans(train_x.float(), train_digit.long(), test_x.float(), test_digit.long())


def distort(x: Tensor, strength: float) -> Tensor:
    """Rotate, scale, shear and shift each scan of `x` [n, 1, 8, 8], and add noise.

    A `strength` of 1 makes many of them unreadable, even for a person.
    """
    turn, zoom, shear, right, down = (torch.rand(5, len(x)) * 2 - 1) * strength
    angle, zoom = 0.5 * turn, 1 + 0.25 * zoom
    top = torch.stack([zoom * angle.cos(), 0.15 * shear - zoom * angle.sin(), 0.3 * right], dim=1)
    bottom = torch.stack([angle.sin(), zoom * angle.cos(), 0.3 * down], dim=1)
    grid = F.affine_grid(torch.stack([top, bottom], dim=1), list(x.shape), align_corners=False)
    moved = F.grid_sample(x, grid, align_corners=False)
    return (moved + 0.15 * strength * torch.randn_like(moved)).clamp(0, 1)


def make_teacher() -> nn.Sequential:
    """A convolutional net with some 50,000 weights."""
    return nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(24, 48, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(48, 48, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * 48, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def make_student() -> nn.Sequential:
    """One hidden layer, a tenth of the teacher's weights."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def weights(model: nn.Module) -> int:
    """The number of trained parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


def train_teacher(scans: Scans) -> nn.Sequential:
    """Train the teacher on distorted training scans, a few seconds on one core."""
    teacher = make_teacher()
    optimizer = torch.optim.AdamW(teacher.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=6e-3, total_steps=TEACHER_STEPS)
    for _ in range(TEACHER_STEPS):
        choice = torch.randint(len(scans.train_x), (128,))
        train_step(
            teacher, optimizer, distort(scans.train_x[choice], TEACHER_DISTORTION), scans.train_digit[choice]
        )
        schedule.step()
    return teacher


# --- Command line ---


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--steps", type=positive, default=1500, help="training steps of each student (%(default)s)"
    )
    parser.add_argument("--suppliers", type=positive, default=2, help="supplier processes (%(default)s)")
    parser.add_argument("--batch-size", type=positive, default=128, help="images in a step (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, split and distortions (%(default)s)")
    parser.add_argument(
        "--output", type=Path, default=Path("demo-output/distill_digits.png"), help="picture (%(default)s)"
    )
    parser.add_argument(
        "--endpoint-dir", type=Path, help="folder for the broker's sockets (default: a temporary one)"
    )
    return parser.parse_args()


def positive(text: str) -> int:
    """An int of 1 or more, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not 1 or more")
    return number


if __name__ == "__main__":
    sys.exit(main())
