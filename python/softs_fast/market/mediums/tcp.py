"""Samples through TCP."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any, Self

from ... import _core
from ...errors import ConfigError, SegmentError
from ...trust import Address
from .base import Data, Medium

__all__ = ["TCPMedium"]

logger = logging.getLogger(__name__)

#: A supplier waits for an owner that takes nothing for so long, once; then not at all until it answers.
_SUPPLIER_TIMEOUT_S = 1.0


class TCPMedium(Medium):
    """Slots in the memory of the client, which listens on a port; suppliers send samples to it.

    Writers of this machine must be of our user, or of root. There is no encryption and no other authentication: use
    addresses of other machines only on a network that you trust.

    Loaders, clients and suppliers take the class with options as a `functools.partial`:

        medium_cls = functools.partial(TCPMedium, host="10.0.0.7", allow_remote=True)

    Args:
        address: ``"host:port"``, ``"[::1]:port"`` for IPv6; default when creating: a free port of `host`.
        slot_size: bytes of one slot.
        num_slots: number of slots; all of them together have less than 4 GiB.
        create: listen rather than connect.
        host: where to listen without an address: an address or a name of this host that suppliers can connect to.
        allow_remote: allows addresses that other machines can reach, or that are on them, and writers of other users.
        congestion: congestion control of the suppliers' connections, such as ``"bbr"``, which keeps its rate on a link
            that loses packets; default: the choice of the system. The samples leave from the supplier, so give it there.
        timeout_s: how long to wait for an owner that does not read or does not answer, seconds. After one wait in vain
            nothing is sent, and nothing waits, until the owner answers again (`is_stalled`).
        connect: False connects with the first use rather than now.
        **kwargs: ignored.

    Raises:
        ConfigError: the address is malformed, or not on this machine and allow_remote is False; the sizes
            are out of range; the kernel does not have the congestion control, or does not allow it.
        PeerLost: no owner listens there; when creating, the system refused the address.
    """

    def __init__(
        self,
        address: str | None,
        slot_size: int,
        num_slots: int,
        create: bool = False,
        host: str = "127.0.0.1",
        *,
        allow_remote: bool = False,
        congestion: str | None = None,
        timeout_s: float = 30.0,
        connect: bool = True,
        **kwargs: Any,
    ) -> None:
        self._server: _core.TcpMediumServer | None = None
        self._writer: _core.TcpMediumWriter | None = None
        # The number of the connection that a thread has prepared.
        self._prepared = threading.local()
        if create:
            self._server = _core.TcpMediumServer(
                address, host, slot_size, num_slots, allow_remote, congestion
            )
            address = self._server.address
            if Address.parse(address, "TCP medium").is_unspecified:
                self._server.close()
                raise ConfigError(
                    f"suppliers connect to the address of a TCP medium, which must be one of this host, got {address!r}; "
                    "pass host= with an address or a name that they reach"
                )
        elif address is None:
            raise ConfigError("address required when create=False")
        else:
            self._writer = _core.TcpMediumWriter(address, allow_remote, timeout_s, connect, congestion)
        super().__init__(address, slot_size, num_slots, create, **kwargs)

    @property
    def is_stalled(self) -> bool:
        """Whether the owner did not answer in time, and has not answered since; False for the owner itself.

        `prepare` and the writes look whether it answers, without waiting for it, and return False until it does.
        """
        return self._writer is not None and self._writer.is_stalled

    def write(self, byte_offset: int, data: Data) -> bool:
        """Send `data` and wait until the owner has stored it; as the owner, store it.

        Args:
            byte_offset: Offset of the first byte in the memory of the slots. An owner of softs-fast takes whole slots
                only.
            data: Any C-contiguous buffer.

        Returns:
            False, and a logged warning, if the owner refused it, is gone, or did not answer in time, or if this
            medium is closed, or is the owner and the range is outside of its slots. The next write connects again.
        """
        return self._store(byte_offset, data)

    def prepare(self) -> bool:
        """Make sure that a connection to the owner is open, for `write_prepared` in the same thread.

        A supplier prepares a connection, checks whether it may still write, and writes over that connection. If its
        order is given to another supplier in between, the owner's `fence` ends the connection, and no write is late.

        Returns:
            False, and a logged warning, if the owner cannot be reached or does not answer in time, or this
            medium is closed. The owner itself gets True.
        """
        was_stalled = self.is_stalled
        try:
            if self._writer is not None:
                self._prepared.connection = self._writer.prepare()
            elif self._server is None:
                raise SegmentError("it is closed")
        except Exception as caught:
            # As text, see below. Of a stalled owner that was logged when it began.
            if not (was_stalled and self.is_stalled):
                logger.warning("cannot prepare a write to TCP medium %r: %s", self.address, str(caught))
            return False
        if was_stalled:
            logger.info("the owner of TCP medium %r answers again", self.address)
        return True

    def write_prepared(self, byte_offset: int, data: Data, order: int = 0) -> bool:
        """Write as `write` does, but only over the connection that this thread has prepared.

        Args:
            byte_offset: Offset of the first byte in the memory of the slots. An owner of softs-fast takes whole
                slots; with the number of an order less than that too, from the beginning of a slot.
            data: Any C-contiguous buffer.
            order: Number of the order; a softs-fast client refuses a sample of an order that has ended. 0: not known.

        Returns:
            As `write`; False also if that connection has ended; it is not opened again.
        """
        return self._store(byte_offset, data, order)

    def _store(self, byte_offset: int, data: Data, order: int | None = None) -> bool:
        """Write; over the prepared connection if there is the number of an order."""
        try:
            if self._server is not None:
                stored = self._server.write(byte_offset, data)
            elif self._writer is None:
                raise SegmentError("it is closed")
            elif order is not None:
                connection = getattr(self._prepared, "connection", None)
                if connection is None:
                    raise SegmentError("this thread has prepared nothing")
                stored = self._writer.write_prepared(connection, byte_offset, data, order)
            else:
                stored = self._writer.write(byte_offset, data)
            if stored:
                return True
            error = "refused, or the owner is gone or has ended the connection"
        except Exception as caught:
            # As text: a log record with the exception would keep this frame alive, and with it the sockets.
            error = str(caught)
        logger.warning("write to TCP medium %r at offset %r failed: %s", self.address, byte_offset, error)
        return False

    def fence(self) -> None:
        """As the owner, end all present connections; suppliers open new ones.

        After the call, no sample that was sent over a connection made before the call is stored any more, not even
        one that a supplier began to send long ago. A supplier of softs-fast notices before its next write; one of
        softs fails one write and then attaches again.

        Raises:
            SegmentError: this is not the owner.
            PeerLost: the connections may not have ended: no file descriptor is left to accept those that wait, or the
                native thread did not answer in time.
            ForkedError: the owner is another process, and this is a fork of it.
        """
        if self._server is not None:
            self._server.fence()
        elif not self.is_owner:
            raise SegmentError(f"TCP medium {self.address!r} is not owned; only its owner can fence it")

    def read(self, slot_id: int) -> bytes:
        """Copy a slot out, as the owner.

        Returns:
            slot_size bytes of one sample, never parts of two.

        Raises:
            SegmentError: there is no such slot, the medium is closed, or this is not the owner.
            ForkedError: the owner is another process, and this is a fork of it.
            OverflowError: slot_id is negative.
        """
        return self.read_head(slot_id, self.slot_size)

    def read_head(self, slot_id: int, n_bytes: int) -> bytes:
        """Copy the first n_bytes of a slot out, as the owner.

        Raises:
            As `read`.
        """
        if self._server is None:
            raise SegmentError(
                f"TCP medium {self.address!r} is closed or not owned; only its open owner can read it"
            )
        return self._server.read(slot_id * self.slot_size, min(n_bytes, self.slot_size))

    @classmethod
    def attach(cls, address: str, *, allow_remote: bool = False) -> Self:
        """Connect to the client that owns the slots.

        Args:
            address: ``"host:port"``.
            allow_remote: allows a host that is not this one.

        Raises:
            ConfigError: the address is malformed, or not on this machine and allow_remote is False.
            PeerLost: no owner listens there.
        """
        return cls(address=address, slot_size=0, num_slots=0, create=False, allow_remote=allow_remote)

    @classmethod
    def attach_limited(
        cls,
        address: str,
        *,
        file_dirs: Sequence[str] = (),
        allow_remote: bool = False,
        congestion: str | None = None,
    ) -> Self:
        """As `attach`, for an address that came in an order: it connects with the first use, and waits 1 s at most.

        Raises:
            ConfigError: the address is malformed, or not on this machine and allow_remote is False.
        """
        return cls(
            address=address,
            slot_size=0,
            num_slots=0,
            create=False,
            allow_remote=allow_remote,
            congestion=congestion,
            timeout_s=_SUPPLIER_TIMEOUT_S,
            connect=False,
        )

    def close(self) -> None:
        """Disconnect; as the owner, end all connections and free the slots. Idempotent."""
        if self._server is not None:
            self._server.close()
        self._server = self._writer = None
