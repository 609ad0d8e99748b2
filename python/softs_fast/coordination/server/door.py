"""Where a server listens, and how long a peer holds a connection of it without having proven anything."""

from __future__ import annotations

import resource
from typing import Any

from ...errors import EndpointInUse
from ...trust import Address
from ..pings import Pings

__all__ = ["listen", "server_options"]

#: For the handshake: gRPC itself waits two minutes, and each connection takes a descriptor.
_HANDSHAKE_S = 5.0
#: For a connection without a call.
_IDLE_S = 10.0
#: Descriptors for anything but connections, such as the state file.
_SPARE = 64
#: The largest number of an option.
_MOST = (1 << 31) - 1


def server_options(pings: Pings, most_bytes: int, most_streams: int) -> list[tuple[str, int]]:
    """Return the options of gRPC's server; connections of peers that prove nothing end.

    Args:
        pings: Pings by which it notices that a peer does not answer.
        most_bytes: Largest number of bytes of a message that it receives.
        most_streams: Largest number of calls of one connection at once.
    """
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if descriptors == resource.RLIM_INFINITY:
        descriptors = _MOST
    return [
        *pings.server_options(),
        ("grpc.server_handshake_timeout_ms", round(_HANDSHAKE_S * 1000)),
        ("grpc.max_connection_idle_ms", round(_IDLE_S * 1000)),
        ("grpc.max_allowed_incoming_connections", min(max(descriptors - _SPARE, 1), _MOST)),
        # A second server at the same address is an error, and never gets some of the peers.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", most_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", most_streams),
    ]


def listen(server: Any, address: Address, credentials: Any, problem: str) -> int:
    """Have gRPC's server listen; return the port.

    Args:
        server: Server of gRPC.
        address: Address at which to listen.
        credentials: Credentials of gRPC; None for a server without TLS.
        problem: Text of the error, with a place for the address.

    Raises:
        EndpointInUse: another process listens there, or the address is not of this machine.
    """
    target = address.target()
    try:
        if credentials is None:
            return int(server.add_insecure_port(target))
        return int(server.add_secure_port(target, credentials))
    except RuntimeError:
        raise EndpointInUse(problem.format(target)) from None
