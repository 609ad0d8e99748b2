"""gRPC, which is loaded when a coordinator or a session starts, and not before."""

from __future__ import annotations

import importlib
import os
from typing import Any

from ..errors import ConfigError

__all__ = ["import_grpc"]


def import_grpc() -> Any:
    """Return the module grpc.

    Its support of forks is switched off before it is loaded, unless the environment says otherwise: with it a fork
    takes a third of a second, and children of a process with open streams die. Its own lines on standard error are
    off, too: what fails is raised or logged here.

    Raises:
        ConfigError: grpcio or protobuf is not installed.
    """
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        importlib.import_module("google.protobuf.message")
        return importlib.import_module("grpc")
    except ImportError as error:
        raise ConfigError(
            f"a coordinator and its sessions need grpcio and protobuf: {error}; pip install 'softs-fast[grpc]'"
        ) from None
