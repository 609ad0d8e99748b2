"""Tables of flows, for ``softs-fast top`` and ``stats``. Pure: what flows say in, cells out."""

from __future__ import annotations

from collections.abc import Sequence

from ..monitoring.flow_status import FlowView
from .table import Table, count, cut, plain, si

__all__ = ["flow_tables", "flows_line"]

#: Columns for a text of a flow.
_TEXT_WIDTH = 40

_FLOW_HEAD = "FLOW THREAD PROCESS STEPS STEPS/S ROWS BYTES AGE OPEN QUIET"
_FUNCTION_HEAD = "FUNCTION PROCESS READY NEEDED RUNNING SINCE"
_WORKER_HEAD = "WORKER INSIDE STATE PROCESS TICKET SINCE"


def flows_line(flows: Sequence[FlowView]) -> str:
    """Return how many flows there are."""
    return f"{count(len(flows), 'flow')} of this user on this host"


def flow_tables(before: Sequence[FlowView], now: Sequence[FlowView]) -> list[Table]:
    """Lay out flows, their functions and their workers.

    Args:
        before: what was seen an interval ago; there are no rates without.
        now: what is seen now.
    """
    earlier = {(one.pid, one.name): one for one in before if not one.error}
    return [
        (_FLOW_HEAD, [_flow(one, earlier.get((one.pid, one.name))) for one in now], 2),
        (
            _FUNCTION_HEAD,
            [
                [
                    _text(one.name),
                    str(flow.pid),
                    si(one.ready),
                    si(one.needed),
                    str(one.running),
                    _seconds(one.seconds) if one.running else "-",
                ]
                for flow in now
                for one in flow.functions
            ],
            1,
        ),
        (
            _WORKER_HEAD,
            [
                [
                    str(one.worker),
                    _text(one.inside or "-"),
                    _text(one.state or "-"),
                    str(one.pid),
                    str(one.ticket or "-"),
                    _seconds(one.seconds),
                ]
                for flow in now
                for one in flow.workers
            ],
            3,
        ),
    ]


def _flow(flow: FlowView, before: FlowView | None) -> list[str]:
    if flow.error:
        return [_text(flow.name), cut(plain(flow.error), 2 * _TEXT_WIDTH), str(flow.pid), *["-"] * 7]
    elapsed_s = flow.at_s - before.at_s if before is not None else 0.0
    is_same = before is not None and elapsed_s > 0 and flow.open_s >= before.open_s
    rate = si(max(flow.steps - before.steps, 0) / elapsed_s) if is_same and before is not None else "-"
    return [
        _text(flow.name),
        f"{_text(flow.doing)} {_seconds(flow.doing_s)}",
        str(flow.pid),
        str(flow.steps),
        rate,
        si(flow.rows),
        si(flow.n_bytes),
        str(flow.age),
        _seconds(flow.open_s),
        _seconds(flow.quiet_s),
    ]


def _text(text: str) -> str:
    return cut(plain(text), _TEXT_WIDTH)


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f}s"
