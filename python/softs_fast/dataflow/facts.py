"""What the master of a flow answers without asking a worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .declare.calls import TRAIN
from .declare.plan import FlowPlan
from .runner import Runner

__all__ = ["spec_of", "stats_of"]


def spec_of(plan: FlowPlan, n_elements: Mapping[str, int | None]) -> dict[str, dict[str, Any]]:
    """Return by partition columns and elements of the source, rows per step, slots in rows, and the bound of the age."""
    return {
        name: {
            "columns": plan.source[name],
            "elements": n_elements[name],
            "rows_per_step": plan.group * partition.groups_per_step,
            "slots": plan.group * partition.slots,
            "age_bound": partition.age_bound,
        }
        for name, partition in plan.partitions.items()
    }


def stats_of(runner: Runner, n_steps: int) -> dict[str, Any]:
    """Return rows, bytes, steps, drops by reason, restarts, rows made again or left out, and counts of what was not finite."""
    rows = runner.master.rows
    return {
        "rows": len(rows),
        "bytes": rows.n_bytes,
        "steps": n_steps,
        "dropped": dict(rows.counts[TRAIN].dropped),
        "restarts": runner.recovery.n_restarts,
        "made_again": rows.n_made_again,
        "not_finite": dict(runner.not_finite.counts),
        "left_out": rows.n_left_out,
    }
