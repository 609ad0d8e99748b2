"""The report of distill_llm.py: the closing lines and the picture."""

from collections.abc import Sequence
from pathlib import Path

from digits_report import STYLE
from llm_checkpoint import LayerResult


def table(results: Sequence[LayerResult]) -> str:
    """The closing lines: what each layer has learnt, and whether the student had to wait."""
    lines = [
        "",
        f"{'':9}{'error on held-out text':^26}{'samples/s alone':^24}{'student':>10}",
        f"{'':9}{'before':>12}{'after':>12}  {'teachers':>12}{'student':>10}{'starved':>12}",
    ]
    lines += [
        f"layer {i:<3}{result.error_before:>12.1%}{result.error_after or 0:>12.1%}  "
        f"{result.teacher_rate:>12,.1f}{result.student_rate:>10,.1f}{result.starvation:>12.1%}"
        for i, result in enumerate(results)
    ]
    lines += [
        "",
        f"starvation: the student waited for data for {starvation(results):.1%} of the training time",
    ]
    kept_up = [result for result in results if result.could_keep_up]
    if kept_up:
        lines.append(
            f"in the {len(kept_up)} of {len(results)} layers where the teachers alone were as fast as the student: "
            f"{starvation(kept_up):.1%}"
        )
    else:
        lines.append("in none of the layers were the teachers alone as fast as the student")
    return "\n".join(lines)


def starvation(results: Sequence[LayerResult]) -> float:
    """The share of the time of several layers that was spent waiting for data."""
    waiting_s = sum(result.waiting_s for result in results)
    return waiting_s / (waiting_s + sum(result.training_s for result in results))


def draw(results: Sequence[LayerResult], path: Path) -> None:
    """Draw loss, errors and starvation of each layer into `path`."""
    # Here and not above: workers draw nothing.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    colors = plt.get_cmap("viridis")([(i + 0.5) / (len(results) + 0.5) for i in range(len(results))])
    places = range(len(results))
    with plt.rc_context(STYLE):
        figure, (loss, error, supply) = plt.subplots(
            1, 3, figsize=(14, 4.6), dpi=130, layout="constrained", width_ratios=[1.5, 1, 1]
        )
        figure.suptitle(
            "Distilling a language model layer by layer: hidden states made live by worker processes",
            fontsize=14,
            fontweight="bold",
            x=0.008,
            ha="left",
        )
        for i, result in enumerate(results):
            loss.plot(range(1, len(result.losses) + 1), result.losses, color=colors[i], label=f"layer {i}")
        loss.set(title="Training loss (relative squared error)", xlabel="batch", yscale="log")
        loss.legend(ncols=2)

        before = [result.error_before for result in results]
        after = [result.error_after or 0.0 for result in results]
        error.bar(
            [place - 0.2 for place in places], before, width=0.4, color="#bbbbbb", label="before training"
        )
        error.bar([place + 0.2 for place in places], after, width=0.4, color="#1f5fbf", label="after")
        error.set(title="Error on held-out text", xlabel="layer", xticks=places)
        error.yaxis.set_major_formatter(_percent)
        error.legend()

        teachers = [result.teacher_rate for result in results]
        student = [result.student_rate for result in results]
        supply.plot(places, teachers, "o-", color="#2c8c6b", label="teachers alone")
        supply.plot(places, student, "o-", color="#d9682b", label="student alone")
        supply.set(
            title=f"Samples/s; starved {starvation(results):.1%} of the time", xlabel="layer", xticks=places
        )
        supply.set_ylim(bottom=0)
        supply.legend()
        figure.savefig(path)
        plt.close(figure)


def _percent(value: float, _: int) -> str:
    return f"{value:.0%}"
