"""Checks of health, for launchers: over HTTP, and by gRPC's own protocol for it."""

from .readiness import coordinator_reason, readiness_page
from .worker import WorkerHealth

__all__ = [
    "WorkerHealth",
    "coordinator_reason",
    "readiness_page",
]
