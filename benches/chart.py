"""The chart of a results file: samples per second, the first two sides of every scenario, on a log scale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benches.markdown import medians

INK = "#1f2933"
QUIET = "#6b7785"
BASELINE = "#b4bfca"
CANDIDATE = "#e4572e"
BAR = 0.36
SECTION_GAP = 0.95


def draw(
    result: dict[str, Any], sections: list[tuple[str, list[tuple[str, dict[str, Any]]]]], path: Path
) -> None:
    """Draw one pair of bars per scenario.

    Args:
        result: a whole results file; names the packages and the machine.
        sections: heading, then (label, scenario record) of each pair.
        path: file to write; its suffix chooses the format.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    # Text stays text and ids stay the same, so the file is small and changes only with the numbers.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "benches", "font.family": "sans-serif"})
    from matplotlib import pyplot as plt

    n_pairs = sum(len(pairs) for _, pairs in sections)
    height = n_pairs + SECTION_GAP * len(sections)
    figure, axes = plt.subplots(figsize=(9.6, 0.44 * height + 1.35))
    y, ticks, labels, fastest, slowest = 0.0, [], [], 1.0, float("inf")
    for heading, pairs in sections:
        axes.text(-0.005, y + 0.1, heading, transform=axes.get_yaxis_transform(), ha="right", va="center",
                  fontsize=10, fontweight="bold", color=INK)  # fmt: skip
        y += SECTION_GAP
        for label, scenario in pairs:
            theirs, ours = (side["samples_per_s"] for side in medians(scenario))
            axes.barh(y - BAR / 2, theirs, BAR, color=BASELINE)
            axes.barh(y + BAR / 2, ours, BAR, color=CANDIDATE)
            _label(axes, theirs, y - BAR / 2, f"{theirs:,.0f}", QUIET, "normal")
            gain = scenario["gains"]["samples_per_s"]["median"]
            _label(axes, ours, y + BAR / 2, f"{ours:,.0f}   {gain:.1f}x", INK, "bold")
            ticks.append(y)
            labels.append(label)
            fastest, slowest = max(fastest, theirs, ours), min(slowest, theirs, ours)
            y += 1
    axes.set_xscale("log")
    axes.set_xlim(slowest / 2, fastest * 4)
    axes.set_ylim(y - 0.4, -0.5)
    axes.set_yticks(ticks, labels, fontsize=9.5, color=INK)
    axes.set_xlabel("samples per second (log scale), median of the rounds", fontsize=9.5, color=QUIET)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.tick_params(axis="both", which="both", length=0)
    axes.tick_params(axis="x", labelsize=9, labelcolor=QUIET)
    axes.grid(axis="x", color="#e6eaee", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    _title(figure, result)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.8 / figure.get_figheight()))
    figure.savefig(path, facecolor="white", metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def _label(axes: Any, x: float, y: float, text: str, color: str, weight: str) -> None:
    axes.annotate(text, (x, y), xytext=(4, 0), textcoords="offset points", va="center",
                  fontsize=8.5, color=color, fontweight=weight)  # fmt: skip


def _title(figure: Any, result: dict[str, Any]) -> None:
    baseline, candidate = result["packages"]
    machine = result["machine"]
    top = figure.get_figheight()
    x = 0.015
    for text, color in ((candidate, CANDIDATE), ("  and  ", QUIET), (baseline, QUIET)):
        drawn = figure.text(x, 1 - 0.28 / top, text, fontsize=14, fontweight="bold", color=color, va="center")
        # Each piece starts at the end of the one before it, which only the renderer can measure.
        x += drawn.get_window_extent().width / figure.get_window_extent().width
    figure.text(
        0.015, 1 - 0.58 / top,
        f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}, {result['date'][:10]}, "
        f"commit {result['commit']['hash'][:9]}",
        fontsize=9, color=QUIET, va="center",
    )  # fmt: skip
