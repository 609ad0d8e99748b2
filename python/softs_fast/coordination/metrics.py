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
    name = "coordinator"
    seated = [seat for seat in status.seats if seat.seat is not None]
    yield f"{name}_epoch", "gauge", "Number of the last epoch.", unlabelled(status.epoch)
    yield f"{name}_open", "gauge", "Whether that epoch is open.", unlabelled(int(status.phase == "open"))
    yield (
        f"{name}_phase_seconds",
        "gauge",
        "For how long the job has been in its phase.",
        unlabelled(status.since_s),
    )
    yield f"{name}_members", "gauge", "Members of the open epoch.", unlabelled(status.size)
    yield f"{name}_seats", "gauge", "Workers that have a seat.", unlabelled(len(seated))
    yield f"{name}_spares", "gauge", "Workers without a seat.", unlabelled(len(status.seats) - len(seated))
    yield (
        f"{name}_step",
        "gauge",
        "Last step that a member has begun.",
        unlabelled(max((s.step for s in seated), default=0)),
    )
    yield (
        f"{name}_step_spread",
        "gauge",
        "Steps between the first and the last member.",
        unlabelled(status.spread),
    )
    yield (
        f"{name}_fences_total",
        "counter",
        "Epochs that have ended, by cause.",
        [({"cause": one.cause}, one.number) for one in status.n_fences],
    )
    yield (
        f"{name}_table_seconds",
        "gauge",
        "Time from the end of an epoch to the next one, the last time.",
        unlabelled(status.table_s),
    )
    step = -1 if status.checkpoint is None else status.checkpoint.step
    yield (
        f"{name}_checkpoint_step",
        "gauge",
        "Step of the last complete checkpoint; -1 for none.",
        unlabelled(step),
    )
