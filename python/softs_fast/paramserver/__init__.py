"""A parameter server for a few machines on the internet: its rounds, its wire, its server, its worker.

The server is loaded when it is asked for: a worker needs none of its packages.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..trust import TlsFiles
    from .job import Job
    from .rounds.options import RunOptions
    from .server.options import ServerOptions
    from .server.server import Server
    from .wire.invite import Invite
    from .wire.messages import RunConfig
    from .worker.optimizer import RemoteOptimizer
    from .worker.session import WorkerOptions

__all__ = [
    "Invite",
    "Job",
    "RemoteOptimizer",
    "RunConfig",
    "RunOptions",
    "Server",
    "ServerOptions",
    "TlsFiles",
    "WorkerOptions",
]

#: Module and name there.
_PLACES = {
    "Invite": ("wire.invite", "Invite"),
    "Job": ("job", "Job"),
    "RemoteOptimizer": ("worker.optimizer", "RemoteOptimizer"),
    "RunConfig": ("wire.messages", "RunConfig"),
    "RunOptions": ("rounds.options", "RunOptions"),
    "Server": ("server.server", "Server"),
    "ServerOptions": ("server.options", "ServerOptions"),
    "TlsFiles": (".trust", "TlsFiles"),
    "WorkerOptions": ("worker.session", "WorkerOptions"),
}


def __getattr__(name: str) -> Any:
    """Load a name of `__all__`."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, there = _PLACES[name]
    return getattr(importlib.import_module(f".{module}", __name__), there)
