"""Where values of rows are kept between processes, and how they travel ([docs/dataflow_design.md])."""

from .columns import Places
from .hosts import HostLinks
from .places import Place, SegmentAddress
from .redistribution import Pull, RedistributionPlan, Redistributor, RowsToMove
from .store import DataManager

__all__ = [
    "DataManager",
    "HostLinks",
    "Place",
    "Places",
    "Pull",
    "RedistributionPlan",
    "Redistributor",
    "RowsToMove",
    "SegmentAddress",
]
