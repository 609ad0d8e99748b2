"""What the panels of docs/grafana.json show: `python -m benches.board [docs/grafana.png]`.

The load of `benches.fleet_load`, and a teacher that is killed beside the largest of it, in five minutes. The page of metrics
is read each second, and the expressions of the panels are evaluated as Prometheus does.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import matplotlib as mpl
from prometheus_client.parser import text_string_to_metric_families

import softs_fast as sf
from benches.fleet_load import BATCH_SIZE, BOUNDS, CONFIG, Student, make_supplier
from softs_fast.monitoring import render_market

BOARD = Path(__file__).parents[1] / "docs" / "grafana.json"
#: Needs in workers that are busy, and how long each lasts, seconds; the teacher is killed in the middle of the second.
STEPS = ((0.6, 75.0), (5.0, 120.0), (1.5, 105.0))
_SUPPLIER = "softs_fast_lane_supplier_samples_total"
#: An expression of a panel: [factor *] rate(name[minutes]) or [factor *] name.
_EXPRESSION = re.compile(r"(?:(\d+) \* )?(?:rate\((\w+)\[(\d+)m\]\)|(\w+))")

#: The values of a page, by name and labels.
Page = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(endpoint: str) -> Page:
    """Return the metrics of a broker at this instant."""
    families = text_string_to_metric_families(render_market(endpoint))
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def record() -> list[tuple[float, Page]]:
    """Return (seconds since the start, page) of a fleet under the steps of load."""
    pages = []
    with (
        sf.Fleet(make_supplier, n_workers=BOUNDS) as fleet,
        fleet.loader("p", CONFIG, num_slots=4 * BATCH_SIZE, batch_size=BATCH_SIZE) as loader,
    ):
        student = Student(loader)
        student.start()
        began = time.monotonic()
        for n, (student.need, lasts_s) in enumerate(STEPS):
            until = time.monotonic() + lasts_s
            kill_at = until - lasts_s / 2 if n == 1 else float("inf")
            while (now := time.monotonic()) < until:
                page = read(fleet.endpoints.frontend)
                pages.append((now - began, page))
                if now > kill_at:
                    pids = [dict(labels)["pid"] for name, labels in page if name == _SUPPLIER]
                    os.kill(max(map(int, pids)), signal.SIGKILL)
                    kill_at = float("inf")
                time.sleep(1)
        student.is_over = True
        student.join()
    return pages


def evaluate(
    expression: str, pages: list[tuple[float, Page]]
) -> dict[frozenset[tuple[str, str]], list[tuple[float, float]]]:
    """Return the points (seconds, value) of each series of an expression.

    Raises:
        ValueError: the expression has a form that is not known here.
    """
    found = _EXPRESSION.fullmatch(expression)
    if found is None:
        raise ValueError(f"cannot evaluate {expression!r}")
    factor, counter, minutes, gauge = found.groups()
    window_s = 60.0 * int(minutes or 0)
    series: dict[frozenset[tuple[str, str]], list[tuple[float, float]]] = {}
    for seconds, page in pages:
        for (name, labels), value in page.items():
            if name == (counter or gauge):
                series.setdefault(labels, []).append((seconds, value * int(factor or 1)))
    return {labels: _rate(points, window_s) if counter else points for labels, points in series.items()}


def _rate(points: list[tuple[float, float]], window_s: float) -> list[tuple[float, float]]:
    first, rates = 0, []
    for last in range(1, len(points)):
        while points[last][0] - points[first][0] > window_s:
            first += 1
        (begin, before), (end, after) = points[first], points[last]
        if first < last:
            rates.append((end, (after - before) / (end - begin)))
    return rates


def draw(board: dict[str, Any], pages: list[tuple[float, Page]], path: Path) -> None:
    """Draw the panels where the board has them."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    figure = plt.figure(figsize=(12, 0.38 * height), layout="constrained")
    grid = figure.add_gridspec(height, 24)
    for panel in board["panels"]:
        at = panel["gridPos"]
        axes = figure.add_subplot(grid[at["y"] : at["y"] + at["h"], at["x"] : at["x"] + at["w"]])
        axes.set_prop_cycle(color=mpl.colormaps["tab20"].colors)
        for target in panel["targets"]:
            for labels, points in evaluate(target["expr"], pages).items():
                legend = target["legendFormat"]
                for name, value in labels:
                    legend = legend.replace(f"{{{{{name}}}}}", value)
                axes.plot(
                    [seconds for seconds, _ in points],
                    [value for _, value in points],
                    label=legend,
                    linewidth=1.2,
                )
        axes.set_title(panel["title"], fontsize=10, loc="left")
        axes.set_ylim(0, 1.4 * max(axes.get_ylim()[1], 0.1))
        axes.tick_params(labelsize=8)
        axes.grid(color="#e6eaee")
        axes.spines[:].set_visible(False)
        if axes.lines:
            axes.legend(fontsize=6.5, frameon=False, ncols=3, loc="upper left")
    figure.savefig(path, dpi=75)
    plt.close(figure)


if __name__ == "__main__":
    draw(
        json.loads(BOARD.read_text()),
        record(),
        Path(sys.argv[1] if len(sys.argv) > 1 else BOARD.with_suffix(".png")),
    )
