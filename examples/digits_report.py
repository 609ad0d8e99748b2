"""The report of distill_digits.py: what is measured, the closing table and the picture."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from softs_fast.loader import LoaderStats

SOFT, HARD, TEACHER, SUPPLY = "#1f5fbf", "#d9682b", "#555555", "#2c8c6b"
STYLE: dict[str, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "legend.frameon": False,
}


@dataclass
class Window:
    """Some steps in a row: losses summed over the steps."""

    steps: int = 0
    loss_soft: float = 0.0
    loss_hard: float = 0.0


@dataclass
class History:
    """The run, window by window, and the first batch as it arrived."""

    n_test: int
    batch: dict[str, Tensor]
    total: LoaderStats = field(default_factory=LoaderStats)
    steps: list[int] = field(default_factory=list)
    accuracy_soft: list[float] = field(default_factory=list)
    accuracy_hard: list[float] = field(default_factory=list)
    loss_soft: list[float] = field(default_factory=list)
    loss_hard: list[float] = field(default_factory=list)
    starvation: list[float] = field(default_factory=list)
    samples_per_s: list[float] = field(default_factory=list)

    def add(
        self, step: int, window: Window, supply: LoaderStats, accuracy_soft: float, accuracy_hard: float
    ) -> None:
        """Append the window that ends at `step`; `supply` counts from the first step on."""
        in_window, self.total = supply.since(self.total), supply
        self.steps.append(step)
        self.accuracy_soft.append(accuracy_soft)
        self.accuracy_hard.append(accuracy_hard)
        self.loss_soft.append(window.loss_soft / window.steps)
        self.loss_hard.append(window.loss_hard / window.steps)
        self.starvation.append(in_window.waiting_share)
        self.samples_per_s.append(in_window.samples_per_s)


def table(history: History, teacher_accuracy: float, teacher_weights: int, student_weights: int) -> str:
    """The closing table."""
    rows = [
        ("", "weights", f"accuracy on {history.n_test} held-out scans"),
        ("teacher", f"{teacher_weights:,}", f"{teacher_accuracy:.1%}"),
        ("student, soft labels", f"{student_weights:,}", f"{history.accuracy_soft[-1]:.1%}"),
        ("student, hard labels", f"{student_weights:,}", f"{history.accuracy_hard[-1]:.1%}"),
    ]
    total = history.total
    seconds = total.waiting_s + total.working_s
    return "\n".join(
        [
            "",
            *(f"{name:22}{weights:>9}{accuracy:>34}" for name, weights, accuracy in rows),
            "",
            f"{total.n_samples:,} samples in {seconds:.1f} s: {total.samples_per_s:,.0f} samples/s",
            f"starvation: the students waited for data for {total.waiting_share:.1%} of that time",
        ]
    )


def draw(history: History, teacher_accuracy: float, path: Path) -> None:
    """Draw the run into `path`: samples as they arrived, accuracy, loss, supply."""
    # Here and not above: suppliers import this file too and draw nothing.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(13, 6.8), dpi=130, layout="constrained")
        figure.suptitle(
            "Distilling handwritten digits: labels made live by supplier processes",
            fontsize=15,
            fontweight="bold",
            x=0.008,
            ha="left",
        )
        strip, charts = figure.subfigures(2, 1, height_ratios=[1, 2.3])
        _draw_samples(strip, history.batch)
        accuracy, loss, supply = charts.subplots(1, 3)
        _draw_accuracy(accuracy, history, teacher_accuracy)
        _draw_loss(loss, history)
        _draw_supply(supply, history)
        figure.savefig(path)
        plt.close(figure)


def _draw_samples(figure: Any, batch: dict[str, Tensor]) -> None:
    order = batch["y"].max(dim=1).values.argsort()
    # From the least sure on, in even steps through the least sure third: there a soft label says more.
    chosen = order[: max(1, len(order) // 3)]
    chosen = chosen[:: max(1, len(chosen) // 8)][:8].tolist()
    figure.suptitle(
        "Samples as they arrived. Bars: the teacher's probability of each digit; orange: the digit scanned",
        fontsize=10,
        x=0.008,
        ha="left",
    )
    axes = figure.subplots(1, 2 * len(chosen), width_ratios=[1.5, 1] * len(chosen), squeeze=False)[0]
    for image, bars, index in zip(axes[::2], axes[1::2], chosen, strict=True):
        digit = int(batch["digit"][index])
        image.imshow(batch["x"][index, 0], cmap="gray_r", vmin=0, vmax=1)
        image.set(xticks=[], yticks=[])
        image.spines[:].set_visible(True)
        image.spines[:].set_color("#bbbbbb")
        bars.barh(range(10), batch["y"][index], color=[HARD if k == digit else SOFT for k in range(10)])
        bars.set(xlim=(0, 1), ylim=(9.6, -0.6), yticks=range(10), xticks=[], box_aspect=2.0)
        bars.tick_params(axis="y", length=0, labelsize=7)
        bars.grid(visible=False)
        bars.spines["bottom"].set_visible(False)
        bars.spines["left"].set_color("#bbbbbb")


def _draw_accuracy(axes: Any, history: History, teacher_accuracy: float) -> None:
    axes.axhline(teacher_accuracy, color=TEACHER, linestyle="--", label=f"teacher: {teacher_accuracy:.1%}")
    for name, values, color in (
        ("soft", history.accuracy_soft, SOFT),
        ("hard", history.accuracy_hard, HARD),
    ):
        axes.plot(history.steps, values, color=color, label=f"student, {name} labels: {values[-1]:.1%}")
    # The first steps would squeeze the rest against the top.
    settled = (
        history.accuracy_soft[len(history.steps) // 10 :] + history.accuracy_hard[len(history.steps) // 10 :]
    )
    axes.set(title=f"Accuracy on {history.n_test} held-out scans", xlabel="step")
    axes.set_ylim(max(0.0, min(settled) - 0.1), 1.005)
    axes.yaxis.set_major_formatter(_percent)
    axes.legend(loc="lower right")


def _draw_loss(axes: Any, history: History) -> None:
    axes.plot(history.steps, history.loss_soft, color=SOFT, label="against soft labels")
    axes.plot(history.steps, history.loss_hard, color=HARD, label="against hard labels")
    axes.set(title="Training loss (cross-entropy)", xlabel="step")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper right")


def _draw_supply(axes: Any, history: History) -> None:
    axes.fill_between(history.steps, history.starvation, color=SUPPLY, alpha=0.25, linewidth=0)
    axes.plot(history.steps, history.starvation, color=SUPPLY)
    axes.set(
        title=f"Starvation: {history.total.waiting_share:.0%} of the time", xlabel="step", ylim=(0, 1.005)
    )
    axes.yaxis.set_major_formatter(_percent)
    speed = axes.twinx()
    speed.plot(history.steps, history.samples_per_s, color=TEACHER, linestyle=":")
    speed.set_ylim(0, 1.25 * max(history.samples_per_s))
    speed.set_ylabel("samples/s (dotted)", color=TEACHER)
    speed.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    speed.grid(visible=False)


def _percent(value: float, _: int) -> str:
    return f"{value:.0%}"
