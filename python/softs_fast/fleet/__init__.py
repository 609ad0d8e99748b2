"""A broker and worker processes that are started, watched, restarted and ended together."""

from .factory import NamedFactory
from .fleet import Fleet
from .private_broker import FleetEndpoints, PrivateBroker
from .ray_cluster import connected_ray, remote_class
from .ray_fleet import RayFleet
from .restarts import RestartPolicy
from .status import FleetView, fleets
from .workers import Workers

__all__ = [
    "Fleet",
    "FleetEndpoints",
    "FleetView",
    "NamedFactory",
    "PrivateBroker",
    "RayFleet",
    "RestartPolicy",
    "Workers",
    "connected_ray",
    "fleets",
    "remote_class",
]
