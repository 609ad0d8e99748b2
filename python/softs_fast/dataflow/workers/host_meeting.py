"""Where workers of several hosts meet to make process groups: a store of torch, in the process of the master."""

from __future__ import annotations

import socket
from typing import Any

from ...errors import ConfigError
from ...trust import Address

__all__ = ["HostMeeting"]


class HostMeeting:
    """A TCPStore of torch, which checks no token: it holds where ranks listen, and they prove to each other what they are.

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
