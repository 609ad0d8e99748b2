"""Where workers of several hosts meet to make process groups: a store of torch, in the process of the master."""

from __future__ import annotations

import socket
from typing import Any

from ...errors import ConfigError
from ...trust import Address, check_reachable
from ..declare.declaration import Declaration

__all__ = ["HostMeeting", "check_groups"]


def check_groups(declaration: Declaration, listen: str, *, is_allowed: bool) -> None:
    """Check that the roles of a flow that are on several workers may be connected.

    Args:
        declaration: Declaration of the flow.
        listen: Endpoint that workers connect to, `tcp://HOST:PORT`.
        is_allowed: Whether the user has said that connections without authentication are well.

    Raises:
        ConfigError: other hosts could be connected so, and the user has not said that this is well.
    """
    names = ", ".join(role.name for role in declaration.roles if len(role.on) > 1)
    if names:
        remedy = (
            "torch.distributed connects them by gloo and a TCPStore, which check no token: on a network of which all "
            "machines are trusted, say allow_insecure=True, or have all workers on this host and listen on 127.0.0.1"
        )
        listening = Address.parse(listen, "master", "tcp://")
        what = f"process group of the roles on several workers ({names})"
        check_reachable(listening, what, insecure=is_allowed, remedy=remedy)


class HostMeeting:
    """A TCPStore of torch; it has no authentication.

    Args:
        listen: Endpoint of the master, `tcp://HOST:PORT`; the store listens at another port of its address.

    Attributes:
        port: Port at which the store listens.

    Raises:
        ConfigError: the address is none of this host.
    """

    def __init__(self, listen: str) -> None:
        # This import takes a second, which flows without such roles need not spend.
        from torch.distributed import TCPStore

        address = Address.parse(listen, "master", "tcp://")
        own = address.numeric[0]
        # By itself a TCPStore listens at all addresses of the host.
        with socket.socket(address.family, socket.SOCK_STREAM) as listening:
            try:
                listening.bind((own, 0))
            except OSError as error:
                raise ConfigError(f"cannot listen at {own} for process groups: {error.strerror}") from error
            self.port: int = listening.getsockname()[1]
            if address.is_unspecified:
                own = "::1" if ":" in own else "127.0.0.1"
            # The store closes the descriptor.
            self._store: Any = TCPStore(
                own, self.port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
            )

    def close(self) -> None:
        """Stop to listen; idempotent."""
        self._store = None
