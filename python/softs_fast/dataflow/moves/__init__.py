"""Where values of rows are kept between processes, and how they travel ([docs/dataflow.md])."""

from .columns import Places
from .places import Place, SegmentAddress
from .redistribution import Rates, Redistributor, RowsToMove
from .store import DataManager
from .transfers import RedistributionPlan, Transfer, WorkerMoves

__all__ = [
    "DataManager",
    "Place",
    "Places",
    "Rates",
    "RedistributionPlan",
    "Redistributor",
    "RowsToMove",
    "SegmentAddress",
    "Transfer",
    "WorkerMoves",
]
