"""Where values of rows are kept between processes, and how they travel ([docs/dataflow.md])."""

from .places import Place, SegmentAddress
from .store import DataManager

__all__ = ["DataManager", "Place", "SegmentAddress"]
