"""A coordinator in its own process: one event loop that owns the machine of a job, and gRPC around it."""

from .serving import Coordinator, CoordinatorOptions

__all__ = [
    "Coordinator",
    "CoordinatorOptions",
]
