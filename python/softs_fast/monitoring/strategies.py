"""Metrics of the collectives of a process in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ..errors import SoftsError
from .families import Family, Field, Labels, families_of_fields, metrics_text

if TYPE_CHECKING:
    from ..collectives import OpMetrics, Strategy

__all__ = ["families_of", "render_strategies"]

_COUNTERS: tuple[Field, ...] = (
    ("collective_calls_total", "Calls of an operation.", "n_calls", 1),
    ("collective_bytes_total", "Bytes of the tensors passed to it; not the traffic.", "bytes", 1),
    ("collective_seconds_total", "Time spent in its calls.", "seconds", 1),
    ("collective_waiting_seconds_total", "The part of it spent waiting for other ranks.", "waiting_s", 1),
    ("collective_errors_total", "Calls that raised an exception.", "errors", 1),
)


def render_strategies(strategies: Mapping[str, Strategy]) -> str:
    """Write the metrics of strategies in Prometheus' text format, version 0.0.4.

    Args:
        strategies: Strategies by name; the name becomes a label.

    Example:
        >>> from softs_fast.monitoring.text_server import TextServer
        >>> def serve(strategy):
        ...     return TextServer(lambda: render_strategies({"gradients": strategy}), "127.0.0.1:9466")
    """
    return metrics_text(families_of(strategies))


def families_of(strategies: Mapping[str, Strategy]) -> Iterator[Family]:
    """Yield the families of metrics of strategies; one that is in no group has `collective_joined` alone."""
    found: list[tuple[Labels, OpMetrics]] = []
    joined: list[tuple[Labels, float]] = []
    for name, strategy in strategies.items():
        try:
            labels = {"strategy": name, "rank": str(strategy.rank)}
            operations = strategy.metrics
        except SoftsError:
            joined.append(({"strategy": name}, 0))
            continue
        joined.append((labels, 1))
        found += [(labels | {"operation": kind}, metrics) for kind, metrics in operations.items()]
    yield "collective_joined", "gauge", "Whether the strategy is in a group.", joined
    yield from families_of_fields(_COUNTERS, found)
