"""Channels to a coordinator, and its errors as ours."""

from __future__ import annotations

from typing import Any

from ...errors import ConfigError, PeerLost, SoftsError, WireError
from ...trust import CONNECT_S, Address, check_reachable, tls_problem
from ..credentials import ClientCredentials
from ..pings import Pings
from ..requirements import import_grpc
from ..wire.formats import MAX_STATUS_BYTES

__all__ = ["error_of", "open_channel"]

#: gRPC says so if there was no connection at all, so no handshake.
_NO_CONNECTION = "Failed to connect to remote host"
_REMEDY = "give --token-file or --tls-ca"


def open_channel(address: str, credentials: ClientCredentials, pings: Pings) -> Any:
    """Return a channel to a coordinator, which connects with its first call; the files of the credentials are read now.

    Raises:
        ConfigError: gRPC is not installed; the address or a file is malformed; another machine is to be reached without
            TLS.
    """
    import_grpc()
    there = Address.parse(address, "coordinator")
    check_reachable(there, "coordinator", tls=credentials.verifies_peers, proof=True, remedy=_REMEDY)
    # What accepts a connection and says nothing is given up as what has fallen silent.
    connect_s = max(CONNECT_S, pings.every_s + pings.timeout_s)
    options = [
        *pings.client_options(),
        # Connections are not shared between channels: a new channel has the certificates of now, and tries at once.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.min_reconnect_backoff_ms", round(connect_s * 1000)),
        # By itself a channel that has failed for long tries each two minutes.
        ("grpc.max_reconnect_backoff_ms", round(connect_s * 1000)),
        ("grpc.max_receive_message_length", MAX_STATUS_BYTES),
        ("grpc.enable_retries", 0),
    ]
    return credentials.grpc_channel(there, options)


def error_of(error: Any, address: str, credentials: ClientCredentials | None = None) -> SoftsError:
    """Return our error for an error of gRPC.

    Args:
        error: Error of gRPC.
        address: Address of the coordinator.
        credentials: Credentials of a connection that may have failed by them; None for one that has lasted.
    """
    codes = import_grpc().StatusCode
    code, text = error.code(), error.details() or "no reason given"
    if code in (codes.UNAUTHENTICATED, codes.PERMISSION_DENIED):
        return ConfigError(f"coordinator at {address} denies the call: {text}")
    if code == codes.INVALID_ARGUMENT:
        return WireError(f"coordinator at {address} refuses the call: {text}")
    if code != codes.UNAVAILABLE:
        return PeerLost(f"coordinator at {address}: {text}")
    if _NO_CONNECTION in text:
        return PeerLost(f"no coordinator answers at {address}: {text}; start it, or correct the address")
    # gRPC tells nothing of a server that refuses a certificate, so the server is asked again.
    if credentials is not None and (
        problem := tls_problem(*Address.split(address, "coordinator"), credentials)
    ):
        return ConfigError(f"no connection to the coordinator at {address}: {problem}")
    return PeerLost(f"no coordinator answers at {address}: {text}")
