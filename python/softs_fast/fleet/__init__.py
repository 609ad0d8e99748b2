"""A broker and worker processes that are started, watched, restarted and ended together."""

from .factory import NamedFactory
from .fleet import Fleet, FleetEndpoints
from .restarts import RestartPolicy
from .status import FleetView, fleets
from .workers import Workers

__all__ = [
    "Fleet",
    "FleetEndpoints",
    "FleetView",
    "NamedFactory",
    "RestartPolicy",
    "Workers",
    "fleets",
]
