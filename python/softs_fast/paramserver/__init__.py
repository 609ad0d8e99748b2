"""A parameter server for a few machines on the internet: its rounds, its wire, its server, its worker.

The server is loaded when it is asked for: a worker needs none of its packages.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .job import Job
    from .rounds.options import RunOptions
    from .server.options import ServerOptions, TlsFiles
    from .server.server import Server
    from .wire.messages import RunConfig

__all__ = ["Job", "RunConfig", "RunOptions", "Server", "ServerOptions", "TlsFiles"]

_MODULES = {
    "Job": "job",
    "RunConfig": "wire.messages",
    "RunOptions": "rounds.options",
    "Server": "server.server",
    "ServerOptions": "server.options",
    "TlsFiles": "server.options",
}


def __getattr__(name: str) -> Any:
    """Load a name of `__all__`."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
