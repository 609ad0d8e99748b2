"""The address of a server. This module imports no torch: a process listens before it has loaded that."""

from __future__ import annotations

import socket

from ....errors import EndpointInUse
from ..options import ServerOptions

__all__ = ["BACKLOG", "listen"]

#: Connections that wait until they are served.
BACKLOG = 512


def listen(options: ServerOptions) -> socket.socket:
    """Return a socket that listens. Peers may connect from now on, and wait until the server takes them.

    Raises:
        EndpointInUse: another process listens there.
    """
    address = options.address
    listener = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.numeric[0], address.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise EndpointInUse(
            f"cannot listen at {options.listen}: {error.strerror}; choose another --listen"
        ) from None
    listener.setblocking(False)
    return listener
