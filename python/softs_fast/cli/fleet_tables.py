"""The table of fleets, for ``softs-fast top`` and ``stats``. Pure: what fleets say in, cells out."""

from __future__ import annotations

from collections.abc import Sequence

from ..fleet.status import FleetView
from .table import Table, cut, plain

__all__ = ["fleet_table"]

_HEAD = "FRONTEND STATE FAILED FLEET WORKER THREADS"
#: Columns of the first line of an error.
_TEXT_WIDTH = 40


def fleet_table(fleets: Sequence[FleetView]) -> Table:
    """Lay out the workers of fleets, a row each."""
    rows = [
        [
            plain(fleet.frontend),
            plain(worker.state),
            cut(plain(worker.error.rstrip().rpartition("\n")[2] or "-"), _TEXT_WIDTH),
            str(fleet.pid),
            plain(worker.name.removeprefix("worker ")),
            plain(worker.threads or "-"),
        ]
        for fleet in fleets
        for worker in fleet.workers
    ]
    return _HEAD, rows, 3
