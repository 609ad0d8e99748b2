"""Why a flow does not go on: for each function what it waits for, and which worker is inside which ticket."""

from __future__ import annotations

from ..declare.plan import FunctionPlan
from ..master.master import DRIVER, Master

__all__ = ["explain"]


def explain(master: Master, now_s: float) -> str:
    """Return a text, one line for each function, step with a ticket, and parked call. Any thread may ask.

    Args:
        master: Master of the flow.
        now_s: Time, by the clock of `Master.advance`.
    """
    lines = []
    for name, partition in master.plan.partitions.items():
        counts = master.rows.counts[name]
        in_flow = counts.live - counts.complete * partition.groups_per_step
        over = ", the source has ended" if master.is_over(name) else ""
        dropped = "".join(f", {n} {reason}" for reason, n in list(counts.dropped.items()))
        lines.append(
            f"{name}: {counts.complete} steps complete, {in_flow} of {partition.slots} slots used"
            f" (groups of {master.plan.group} rows){dropped}{over}"
        )
    lines += [_function(master, one, now_s) for one in master.plan.functions]
    lowest: dict[int, int] = {}
    for step in master.order.tickets:
        where: dict[str, list[str]] = {}
        for worker in sorted(list(step.missing)):
            first = lowest.setdefault(worker, step.ticket)
            # A worker runs its steps by ticket, so the lowest that has not ended is the one it is in, or gets to.
            place = "inside" if first == step.ticket else f"after ticket {first}"
            where.setdefault(place, []).append(_worker(worker))
        lines.append(
            f"ticket {step.ticket}: {step.kind.name.lower()} of {step.name} (call {step.call})"
            f" since {now_s - step.since_s:.1f} s; "
            + "; ".join(f"{place}: {', '.join(workers)}" for place, workers in where.items())
        )
    lines += [f"call {call.number} of {call.name} waits for a flush" for call in master.order.parked]
    return "\n".join(lines)


def _function(master: Master, function: FunctionPlan, now_s: float) -> str:
    size, rows = master.plan.group, master.rows
    running = [
        state for state in list(master.calls.values()) if state.function is function and not state.is_posted
    ]
    text = f"{function.name}: {rows.n_ready(function.name)} rows ready of {function.groups * size}"
    if function.least < function.groups:
        text += f" (at least {function.least * size})"
    missing = rows.missing(function.name)
    if missing:
        text += "; not made: " + ", ".join(f"{column} of {n} rows" for column, n in missing.items())
    for state in running:
        text += f"; call {state.number} since {now_s - state.since_s:.1f} s"
    away = set(function.workers) & master.order.away
    if away:
        text += f"; workers {sorted(away)} are {'away' if function.is_pool else 'started again'}"
    lost = set(function.workers) - master.order.alive - away
    if lost:
        text += f"; workers {sorted(lost)} are lost"
    return text


def _worker(number: int) -> str:
    return "the flow's own process" if number == DRIVER else f"worker {number}"
