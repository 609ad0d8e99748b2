"""Distil a convolutional teacher into a small student, live, over softs-fast.

Run it with `make demo`. A teacher learns scikit-learn's scans of handwritten digits for a few seconds and is
sent to supplier processes. They distort scans without end, label each one with the teacher's probabilities,
and write it to the student's shared memory. Two students start from the same weights and see the same images
at the same steps: one learns the teacher's probabilities (soft labels), the other the digit that the scan
showed before it was distorted (hard labels). Broker and students run in this process.
"""

import argparse
import functools
import io
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    # The imports below take seconds; until main() listens, Ctrl-C ends the process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import softs_fast as sf
from digits_report import History, Window, draw, table

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
    """Train the teacher, start its suppliers, train both students, report."""
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)  # every process of the demo is one core's worth of work
    scans = load_scans(options.seed)
    print(f"teacher: {TEACHER_STEPS} steps on {len(scans.train_x):,} scans ...", flush=True)
    teacher = train_teacher(scans)
    message = io.BytesIO()
    torch.save({"teacher": teacher.state_dict(), "x": scans.train_x, "digit": scans.train_digit}, message)

    print(f"students: {options.steps:,} steps of {options.batch_size} fresh images", flush=True)
    student_soft = make_student()
    student_hard = make_student()
    student_hard.load_state_dict(student_soft.state_dict())
    make_supplier_of_teacher = functools.partial(make_supplier, message.getvalue(), options.seed)
    with (
        sf.Fleet(make_supplier_of_teacher, n_workers=options.suppliers) as fleet,
        fleet.loader(
            PRODUCT,
            SAMPLE,
            num_slots=4 * options.batch_size,
            request_timeout=SUPPLY_TIMEOUT_S,
            batch_size=options.batch_size,
        ) as loader,
    ):
        history = train_students(student_soft, student_hard, loader, scans, options.steps)

    teacher_accuracy = accuracy(teacher, scans.test_x, scans.test_digit)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    draw(history, teacher_accuracy, options.output)
    print(table(history, teacher_accuracy, weights(teacher), weights(student_soft)))
    print(f"picture: {options.output}")


# --- The supplier's side ---


def make_supplier(message: bytes, seed: int) -> sf.Supplier:
    """Return a supplier that distorts scans and labels them with the teacher, both in `message`."""
    torch.set_num_threads(1)
    taught = torch.load(io.BytesIO(message), weights_only=True)
    teacher = make_teacher()
    teacher.load_state_dict(taught["teacher"])

    def label(product_id: str, n: int, sequences: tuple[int, ...]) -> dict[str, Tensor]:
        # Each number goes to one supplier, so no image comes twice.
        torch.manual_seed(seed + 1 + sequences[0])
        choice = torch.randint(len(taught["x"]), (n,))
        x = distort(taught["x"][choice], DISTORTION)
        with torch.inference_mode():
            return {"x": x, "y": teacher(x).softmax(dim=1), "digit": taught["digit"][choice]}

    return sf.Supplier(batch_generator_fn=label, product_ids=[PRODUCT], batch_config=SAMPLE)


# --- The student's side ---


def train_students(
    student_soft: nn.Module, student_hard: nn.Module, loader: sf.SoftDataLoader, scans: "Scans", steps: int
) -> History:
    """Train both students on the same batches."""
    from tqdm import tqdm

    optimizers = [torch.optim.Adam(student.parameters()) for student in (student_soft, student_hard)]
    batches = iter(loader)
    history = History(n_test=len(scans.test_x), batch=next(batches))
    first = loader.stats  # it waited for the suppliers' start, and is not trained on
    ends_of_windows = {round(steps * k / 30) for k in range(1, 31)}
    window = Window()

    # A terminal gets a bar that is updated often, a log file a line every few seconds.
    bar = tqdm(total=steps, unit="step", ncols=110, mininterval=0.2 if sys.stderr.isatty() else 5.0)
    for step, batch in zip(range(1, steps + 1), batches, strict=False):
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - step / (steps + 1))
        window.loss_soft += train_step(student_soft, optimizers[0], batch["x"], batch["y"])
        window.loss_hard += train_step(student_hard, optimizers[1], batch["x"], batch["digit"])
        window.steps += 1
        bar.update()

        if step in ends_of_windows:
            soft = accuracy(student_soft, scans.test_x, scans.test_digit)
            hard = accuracy(student_hard, scans.test_x, scans.test_digit)
            history.add(step, window, loader.stats.since(first), soft, hard)
            bar.set_postfix_str(
                f"{history.samples_per_s[-1]:,.0f} samples/s, starved {history.starvation[-1]:.0%}, "
                f"accuracy {soft:.1%} soft, {hard:.1%} hard",
                refresh=False,
            )
            window = Window()
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
    return parser.parse_args()


def positive(text: str) -> int:
    """An int of 1 or more, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not 1 or more")
    return number


if __name__ == "__main__":
    sys.exit(main())
