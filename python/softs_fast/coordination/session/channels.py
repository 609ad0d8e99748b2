"""Channels to a coordinator, and its errors as ours."""

from __future__ import annotations

from typing import Any

from ...errors import ConfigError, PeerLost, SoftsError, WireError
from ..addresses import parse_address
from ..credentials import ClientCredentials
from ..pings import Pings
from ..requirements import import_grpc
from ..wire.limits import MAX_STATUS_BYTES

__all__ = ["error_of", "open_channel"]

#: An attempt to connect takes so long at most: what is not there may not answer at all.
_CONNECT_MS = 2000


def open_channel(
    address: str, credentials: ClientCredentials, pings: Pings, what: str = "coordinator"
) -> Any:
    """Return a channel to `what`, which connects with its first call; the files of the credentials are read now.

    Raises:
        ConfigError: gRPC is not installed; the address or a file is malformed; another machine is to be reached without
            TLS.
    """
    grpc = import_grpc()
    parsed = parse_address(address, what)
    credentials.check(parsed, what)
    options = [
        *pings.client_options(),
        # Connections are not shared between channels: a new channel has the certificates of now, and tries at once.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.min_reconnect_backoff_ms", _CONNECT_MS),
        ("grpc.max_receive_message_length", MAX_STATUS_BYTES),
        ("grpc.enable_retries", 0),
        # A proxy for the Internet, which the environment may name, is no way to a coordinator.
        ("grpc.enable_http_proxy", 0),
    ]
    pem = credentials.read()
    if pem is None:
        return grpc.insecure_channel(parsed.target(), options)
    tls = grpc.ssl_channel_credentials(pem.ca, pem.key, pem.certificate)
    return grpc.secure_channel(parsed.target(), tls, options)


def error_of(error: Any, address: str) -> SoftsError:
    """Return our error for an error of gRPC."""
    codes = import_grpc().StatusCode
    code, text = error.code(), error.details() or "no reason given"
    if code in (codes.UNAUTHENTICATED, codes.PERMISSION_DENIED):
        return ConfigError(f"coordinator at {address} denies the call: {text}")
    if code == codes.INVALID_ARGUMENT:
        return WireError(f"coordinator at {address} refuses the call: {text}")
    if code == codes.UNAVAILABLE:
        return PeerLost(f"no coordinator answers at {address}: {text}")
    return PeerLost(f"coordinator at {address}: {text}")
