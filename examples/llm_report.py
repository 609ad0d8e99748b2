"""What distill_llm.py measures of each layer, the closing lines and the picture."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from digits_report import HARD, SOFT, STYLE, SUPPLY
from softs_fast.loader import LoaderStats


@dataclass
class LayerResult:
    """Measurements of the training of one layer on this rank."""

    error_before: float  # ‖student - teacher‖ / ‖teacher‖ on held-out text, all ranks
    teacher_rate: float  # samples/s that all teachers made for this rank while it did not train
    error_after: float = 0.0
    stats: LoaderStats = field(default_factory=LoaderStats)
    losses: list[float] = field(default_factory=list)  # one for each batch

    @property
    def student_rate(self) -> float:
        """Samples per second that the student would take if it never waited."""
        return self.stats.n_samples / self.stats.working_s if self.stats.working_s else 0.0


def total(results: Sequence[LayerResult]) -> LoaderStats:
    """Return the statistics of several layers together."""
    return LoaderStats(*(sum(column) for column in zip(*(one.stats for one in results), strict=True)))


def table(results: Sequence[LayerResult]) -> str:
    """The closing lines: what each layer has learnt, and whether the student had to wait."""
    lines = [
        f"{'':9}{'error on held-out text':^26}{'samples/s alone':^24}{'student':>10}",
        f"{'':9}{'before':>12}{'after':>12}  {'teachers':>12}{'student':>10}{'starved':>12}",
    ]
    lines += [
        f"layer {i:<3}{one.error_before:>12.1%}{one.error_after:>12.1%}  "
        f"{one.teacher_rate:>12,.1f}{one.student_rate:>10,.1f}{one.stats.waiting_share:>12.1%}"
        for i, one in enumerate(results)
    ]
    share = total(results).waiting_share
    lines.append(f"\nstarvation: the student waited for data for {share:.1%} of the training time")
    return "\n" + "\n".join(lines)


def draw(results: Sequence[LayerResult], path: Path) -> None:
    """Draw loss, errors and rates of each layer into `path`."""
    # Here and not above: workers draw nothing.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    places = range(len(results))
    with plt.rc_context(STYLE):
        figure, (loss, error, supply) = plt.subplots(1, 3, figsize=(14, 4.6), dpi=130, layout="constrained")
        figure.suptitle("Distilling a language model layer by layer: hidden states made live by workers")
        for i, one in enumerate(results):
            loss.plot(range(1, len(one.losses) + 1), one.losses, label=f"layer {i}")
        loss.set(title="Training loss (relative squared error)", xlabel="batch", yscale="log")
        error.plot(places, [100 * one.error_before for one in results], "o-", label="before training")
        error.plot(places, [100 * one.error_after for one in results], "o-", color=SOFT, label="after")
        error.set(title="Error on held-out text, %", xlabel="layer", xticks=places)
        supply.plot(places, [one.teacher_rate for one in results], "o-", color=SUPPLY, label="teachers alone")
        supply.plot(places, [one.student_rate for one in results], "o-", color=HARD, label="student alone")
        share = total(results).waiting_share
        supply.set(title=f"Samples/s; starved {share:.1%} of the time", xlabel="layer", xticks=places)
        for axes in (loss, error, supply):
            axes.legend()
        figure.savefig(path)
        plt.close(figure)
