"""The coordinator and a worker as state machines: no clock, no socket, no thread, nothing but the standard library."""

from .events import Drain, End, Evict, Resize
from .messages import Report, Saved
from .options import JobOptions
from .status import Status

__all__ = [
    "Drain",
    "End",
    "Evict",
    "JobOptions",
    "Report",
    "Resize",
    "Saved",
    "Status",
]
