"""Metrics of stars in Prometheus' text format: of the calls of each rank, and of what rank 0 does for the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

from ...errors import SoftsError
from ...monitoring import Family, families_of, metrics_text
from .strategy import GrpcStrategy

__all__ = ["render_metrics"]

_COUNTERS = (
    ("received_bytes", "Data that rank 0 has received from another rank.", "received_bytes"),
    ("sent_bytes", "Results that rank 0 has sent to another rank.", "sent_bytes"),
    ("waited_seconds", "Time that rank 0 has waited for another rank.", "waited_s"),
)


def render_metrics(stars: Mapping[str, GrpcStrategy]) -> str:
    """Write the metrics of stars in Prometheus' text format, version 0.0.4.

    Args:
        stars: Stars by a name, which becomes a label.
    """
    return metrics_text([*families_of(stars), *_families(stars)])


def _families(stars: Mapping[str, GrpcStrategy]) -> Iterator[Family]:
    by_rank, refused = [], []
    for name, star in stars.items():
        with suppress(SoftsError):
            by_rank += [
                ({"strategy": name, "peer": str(rank)}, found) for rank, found in star.rank_metrics.items()
            ]
            refused.append(({"strategy": name}, star.n_refused))
    for name, text, field in _COUNTERS:
        yield (
            f"star_{name}_total",
            "counter",
            text,
            [(labels, getattr(one, field)) for labels, one in by_rank],
        )
    yield "star_refused_total", "counter", "Processes that rank 0 has refused.", refused
