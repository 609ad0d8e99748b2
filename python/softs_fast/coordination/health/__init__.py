"""Checks of health, for launchers: over HTTP, and by gRPC's own protocol for it."""

from .worker import WorkerHealth

__all__ = ["WorkerHealth"]
