"""Where workers of several hosts meet to make process groups: a store of torch, in the process of the master."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

from ...coordination.addresses import Address, parse_address
from ...errors import ConfigError
from ..declare.declaration import Declaration

__all__ = ["HostMeeting", "check_groups", "open_meeting"]


def check_groups(declaration: Declaration, listen: str, *, is_allowed: bool) -> None:
    """Check that the roles of a flow that are on several workers may be connected.

    Args:
        declaration: Declaration of the flow.
        listen: Endpoint that workers connect to, `tcp://HOST:PORT`.
        is_allowed: Whether the user has said that connections without authentication are well.

    Raises:
        ConfigError: other hosts could be connected so, and the user has not said that this is well.
    """
    names = [role.name for role in declaration.roles if len(role.on) > 1]
    if names and not is_allowed and not _listening(listen).is_loopback:
        raise ConfigError(
            f"roles on several workers: {', '.join(names)}; torch.distributed connects their processes by gloo and a "
            f"TCPStore, which check no token, and {listen} is for other hosts; on a network of which all machines are "
            "trusted, say allow_insecure=True, or have all workers on this host and listen on 127.0.0.1"
        )


def open_meeting(listen: str) -> HostMeeting:
    """Listen at another port of the address of the master.

    Raises:
        ConfigError: the address is none of this host.
    """
    return HostMeeting(_listening(listen).numeric[0])


class HostMeeting:
    """A TCPStore of torch; it has no authentication.

    Args:
        address: Numeric address at which the store listens.

    Attributes:
        port: Port at which the store listens.

    Raises:
        ConfigError: the address is none of this host.
    """

    def __init__(self, address: str) -> None:
        # This import takes a second, which flows without such roles need not spend.
        from torch.distributed import TCPStore

        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        # By itself a TCPStore listens at all addresses of the host.
        with socket.socket(family, socket.SOCK_STREAM) as listening:
            try:
                listening.bind((address, 0))
            except OSError as error:
                raise ConfigError(
                    f"cannot listen at {address} for process groups: {error.strerror}"
                ) from error
            self.port: int = listening.getsockname()[1]
            own = _reachable(address)
            # The store closes the descriptor.
            self._store: Any = TCPStore(
                own, self.port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
            )

    def close(self) -> None:
        """Stop to listen; idempotent."""
        self._store = None


def _listening(listen: str) -> Address:
    return parse_address(listen.removeprefix("tcp://"), "master")


def _reachable(address: str) -> str:
    """Return by what this process reaches what listens at an address of its own."""
    if not ipaddress.ip_address(address).is_unspecified:
        return address
    return "::1" if ":" in address else "127.0.0.1"
