"""A broker and worker processes that are started, watched, restarted and ended together."""

from .fleet import Fleet, FleetEndpoints
from .workers import Workers

__all__ = ["Fleet", "FleetEndpoints", "Workers"]
