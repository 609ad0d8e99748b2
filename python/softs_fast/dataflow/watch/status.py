"""The status of a flow, and why it is quiet: read by another thread than that of the flow."""

from __future__ import annotations

from typing import Any

from ..declare.calls import TRAIN
from ..engine.explain import explain
from ..engine.runner import Runner
from ..workers.backend import Backend
from ..workers.sightings import Sight

__all__ = ["quiet_since", "report_of", "status_of"]

#: How long all workers together may take to answer, seconds.
_ANSWER_S = 1.0
#: The same for a report, which is rare and has their stacks too.
_REPORT_S = 3.0


def status_of(
    name: str, pid: int, opened_s: float, runner: Runner, backend: Backend, now_s: float
) -> dict[str, Any]:
    """Return the status of a flow in plain types; `flows` reads it as `FlowView`.

    Args:
        name: Name of the flow.
        pid: Process id of the flow.
        opened_s: Time at which the flow was opened.
        runner: Runner of the flow.
        backend: Backend of the flow; its workers are asked.
        now_s: Current time.
    """
    master, doing = runner.master, backend.doing.now
    functions = []
    for one in master.plan.functions:
        running = [state.since_s for state in list(master.calls.values()) if state.function is one]
        functions.append(
            {
                "name": one.name,
                "ready": master.rows.n_ready(one.name),
                "needed": one.groups * master.plan.group,
                "running": len(running),
                "seconds": now_s - min(running, default=now_s),
            }
        )
    return {
        "name": name,
        "pid": pid,
        "open_s": now_s - opened_s,
        "quiet_s": now_s - max(runner.answered_s, opened_s),
        "steps": master.rows.counts[TRAIN].complete,
        "rows": len(master.rows),
        "n_bytes": master.rows.n_bytes,
        "age": runner.age,
        "doing": doing[0],
        "doing_s": now_s - doing[1],
        "functions": functions,
        "workers": [
            {
                "worker": worker,
                "pid": one.pid,
                "inside": one.inside,
                "ticket": one.ticket,
                "seconds": one.seconds,
                "state": one.state,
            }
            for worker, one in backend.sights(_ANSWER_S).items()
        ],
    }


def quiet_since(runner: Runner, backend: Backend) -> float | None:
    """Return since when no call has ended while the flow runs; None while its caller has the thread."""
    inside_s = backend.doing.inside_s
    return None if inside_s is None else max(inside_s, runner.answered_s)


def report_of(runner: Runner, backend: Backend, since_s: float, now_s: float) -> str:
    """Return why no call has ended for so long, as far as it is known.

    Args:
        runner: Runner of the flow.
        backend: Backend of the flow; its workers are asked.
        since_s: Time since which no call has ended.
        now_s: Current time.
    """
    what, what_s = backend.doing.now
    lines = [
        f"no call of the flow has ended for {now_s - since_s:.1f} s while work remains; its own thread {what} "
        f"since {now_s - what_s:.1f} s",
        explain(runner.master, now_s) + runner.datasets.explain(now_s),
    ]
    for worker, one in backend.sights(_REPORT_S, stacks=True).items():
        lines.append(f"worker {worker}: {_worker(one)}")
        lines += [f"    {frame}" for frame in one.stack]
    return "\n".join(lines)


def _worker(one: Sight) -> str:
    where = f"inside {one.inside} (ticket {one.ticket})" if one.inside else "waits for orders"
    text = f"process {one.pid}: {where} since {one.seconds:.1f} s" if one.is_known else f"process {one.pid}"
    return f"{text}; {one.state}" if one.state else text
