"""The address of a server. This module imports no torch: a process listens before it has loaded that."""

from __future__ import annotations

import socket

from ....errors import ConfigError, EndpointInUse
from ..options import ServerOptions

__all__ = ["BACKLOG", "listen"]

#: Connections that wait until they are served.
BACKLOG = 512


def listen(options: ServerOptions) -> socket.socket:
    """Return a socket that listens. Peers may connect from now on, and wait until the server takes them.

    Raises:
        ConfigError: the address is not known.
        EndpointInUse: another process listens there.
    """
    try:
        (family, kind, protocol, _, address), *_ = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise ConfigError(f"the address {options.host!r} is not known: {error.strerror}") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise EndpointInUse(
            f"cannot listen at {options.listen}: {error.strerror}; choose another --listen"
        ) from None
    listener.setblocking(False)
    return listener
