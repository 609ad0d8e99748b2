"""How long a peer holds a connection of a server without having proven anything."""

from __future__ import annotations

import resource

__all__ = ["door_options"]

#: For the handshake: gRPC itself waits two minutes, and each connection takes a descriptor.
_HANDSHAKE_S = 5.0
#: For a connection without a call.
_IDLE_S = 10.0
#: Descriptors for anything but connections, such as the state file.
_SPARE = 64
#: The largest number of an option.
_MOST = (1 << 31) - 1


def door_options() -> list[tuple[str, int]]:
    """Return the options of gRPC's server that end connections of peers that prove nothing."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if descriptors == resource.RLIM_INFINITY:
        descriptors = _MOST
    return [
        ("grpc.server_handshake_timeout_ms", round(_HANDSHAKE_S * 1000)),
        ("grpc.max_connection_idle_ms", round(_IDLE_S * 1000)),
        ("grpc.max_allowed_incoming_connections", min(max(descriptors - _SPARE, 1), _MOST)),
    ]
