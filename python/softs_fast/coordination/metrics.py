"""Metrics of a coordinator in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator

from ..monitoring import Family, metrics_text, unlabelled
from .job.status import Status

__all__ = ["render_metrics"]


def render_metrics(status: Status | None) -> str:
    """Write a status in Prometheus' text format, version 0.0.4; None stands for a coordinator that does not answer."""
    up: Family = ("up", "gauge", "Whether the coordinator answers.", unlabelled(int(status is not None)))
    return metrics_text([up, *(_families(status) if status is not None else ())])


def _families(status: Status) -> Iterator[Family]:
    seated = [seat for seat in status.seats if seat.seat is not None]
    gauges: tuple[tuple[str, str, float], ...] = (
        ("epoch", "Number of the last epoch.", status.epoch),
        ("open", "Whether that epoch is open.", int(status.phase == "open")),
        ("phase_seconds", "For how long the job has been in its phase.", status.since_s),
        ("members", "Members of the open epoch.", status.size),
        ("seats", "Workers that have a seat.", len(seated)),
        ("spares", "Workers without a seat.", len(status.seats) - len(seated)),
        ("step", "Last step that a member has begun.", max((s.step for s in seated), default=0)),
        ("step_spread", "Steps between the first and the last member.", status.spread),
        ("table_seconds", "Time from the end of an epoch to the next one, the last time.", status.table_s),
        (
            "checkpoint_step",
            "Step of the last complete checkpoint; -1 for none.",
            -1 if status.checkpoint is None else status.checkpoint.step,
        ),
    )
    for name, text, value in gauges:
        yield f"coordinator_{name}", "gauge", text, unlabelled(value)
    yield (
        "coordinator_fences_total",
        "counter",
        "Epochs that have ended, by cause.",
        [({"cause": one.cause}, one.number) for one in status.n_fences],
    )
