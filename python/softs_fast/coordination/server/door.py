"""Where a server listens, and how long a peer holds a connection of it without having proven anything."""

from __future__ import annotations

import resource
from typing import Any

from ...errors import EndpointInUse
from ...trust import Address
from ..pings import Pings
from ..wire.formats import MAX_KEYS_BYTES

__all__ = ["listen", "server_options"]

#: For the handshake: gRPC itself waits two minutes, and each connection takes a descriptor.
_HANDSHAKE_S = 5.0
#: For a connection without a call.
_IDLE_S = 10.0
#: Descriptors for anything but connections, such as the state file.
_SPARE = 64
#: Calls of one connection at once.
_MOST_CALLS = 128
#: The largest number of an option.
_MOST = (1 << 31) - 1


def server_options(pings: Pings) -> list[tuple[str, int]]:
    """Return the options of gRPC's server; connections of peers that prove nothing, or do not answer pings, end."""
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
        ("grpc.max_receive_message_length", MAX_KEYS_BYTES),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", _MOST_CALLS),
    ]


def listen(server: Any, address: Address, credentials: Any) -> int:
    """Have gRPC's server listen, with its credentials, or None for a server without TLS; return the port.

    Raises:
        EndpointInUse: another process listens there, or the address is not of this machine.
    """
    target = address.target()
    try:
        if credentials is None:
            return int(server.add_insecure_port(target))
        return int(server.add_secure_port(target, credentials))
    except RuntimeError:
        raise EndpointInUse(
            f"cannot listen at {target}: another process does, maybe another coordinator, or the address is not of this "
            "machine; softs-fast coordinator status tells which job it has"
        ) from None
