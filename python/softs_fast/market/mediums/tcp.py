"""Samples through TCP, in the protocol of softs."""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self

from ...errors import ConfigError, PeerLost, SegmentError
from ...process import check_process
from ...trust import bracketed
from .base import Data, Medium
from .tcp_owner import HEADER, PATIENCE_S, STORED, Owner, place_of

__all__ = ["TCPMedium"]

logger = logging.getLogger(__name__)


class TCPMedium(Medium):
    """Slots in the memory of the client, which listens on a port; suppliers send samples to it, in softs' protocol.

    It is there for peers of softs. Between peers of softs-fast on several hosts use a link (docs/hosts.md): it is
    faster, encrypted, and stores no sample that comes too late. Here one may come after its broker was lost, or by a
    proxy, when its slot has another order: a sample of that number is then another one. Writers of this machine must
    be of our user, or of root; nothing is encrypted, and writers of other machines prove nothing.

    Loaders, clients and suppliers take the class with options as a `functools.partial`:

        medium_cls = functools.partial(TCPMedium, host="10.0.0.7", allow_remote=True)

    Args:
        address: ``"host:port"``, ``"[::1]:port"`` for IPv6; default when creating: a free port of `host`.
        slot_size: Bytes of one slot.
        num_slots: Number of slots; all of them together have less than 4 GiB.
        create: Listen rather than connect.
        host: Where to listen without an address: an address or a name of this host that suppliers can connect to.
        allow_remote: Allows addresses that other machines can reach, or that are on them, and writers of other users.
        **kwargs: Ignored.

    Raises:
        ConfigError: the address is malformed, or not on this machine and allow_remote is False; the sizes
            are out of range.
        PeerLost: no owner listens there; when creating, the system refused the address.
    """

    native_kind = "tcp"

    def __init__(
        self,
        address: str | None,
        slot_size: int,
        num_slots: int,
        create: bool = False,
        host: str = "127.0.0.1",
        *,
        allow_remote: bool = False,
        **kwargs: Any,
    ) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._owner: Owner | None = None
        self._socket: socket.socket | None = None
        if create:
            at = address or f"{bracketed(host.strip('[]'))}:0"
            self._owner = Owner(at, slot_size, num_slots, allow_remote)
            weakref.finalize(self, self._owner.close)
            address = self._owner.address
        elif address is None:
            raise ConfigError("address required when create=False")
        else:
            self._socket = _connect(address, allow_remote)
        super().__init__(address, slot_size, num_slots, create, **kwargs)

    def write(self, byte_offset: int, data: Data) -> bool:
        """Send `data` and wait until the owner has stored it; as the owner, store it.

        Args:
            byte_offset: Offset of the first byte in the memory of the slots. An owner of softs-fast takes whole slots
                only.
            data: Any C-contiguous buffer.

        Returns:
            False, and a logged warning, if the owner refused it, is gone, or neither took nor answered anything for
            10 s, or if this medium is closed, or is the owner and the range is outside of its slots. After a write that
            the owner did not confirm, attach again.
        """
        try:
            check_process(self._pid, f"TCP medium {self.address!r}")
            write = self._send if self._owner is None else self._owner.write
            write(byte_offset, memoryview(data).cast("B"))
        except Exception as error:
            # As text: a log record with the exception would keep this frame alive, and with it the socket.
            logger.warning(
                "write to TCP medium %r at offset %r failed: %s", self.address, byte_offset, str(error)
            )
            return False
        return True

    def _send(self, byte_offset: int, data: memoryview) -> None:
        """Write over the connection, which ends unless the owner confirms it."""
        header = HEADER.pack(byte_offset, len(data))
        with self._lock:
            if self._socket is None:
                raise SegmentError("it is closed")
            confirmed = False
            try:
                # The header leaves with the first bytes of the sample.
                self._socket.sendall(header, socket.MSG_MORE)
                while data:
                    # By parts: the patience is for each of them.
                    data = data[self._socket.send(data) :]
                confirmed = self._socket.recv(1) == STORED
            except TimeoutError:
                raise PeerLost(f"the owner made no progress for {PATIENCE_S:.0f} s") from None
            finally:
                if not confirmed:
                    self._socket.close()
                    self._socket = None
        if not confirmed:
            raise PeerLost("the owner refused it, or is gone")

    def read(self, slot_id: int) -> bytes:
        """Copy a slot out, as the owner.

        Returns:
            slot_size bytes of one sample, never parts of two.

        Raises:
            SegmentError: there is no such slot, the medium is closed, or this is not the owner.
            ForkedError: the owner is another process, and this is a fork of it.
        """
        check_process(self._pid, f"TCP medium {self.address!r}")
        if self._owner is None:
            raise SegmentError(
                f"TCP medium {self.address!r} is closed or not owned; only its open owner can read it"
            )
        return self._owner.read(slot_id * self.slot_size, self.slot_size)

    @classmethod
    def attach(cls, address: str, *, allow_remote: bool = False) -> Self:
        """Connect to the client that owns the slots.

        Args:
            address: ``"host:port"``.
            allow_remote: Allows a host that is not this one.

        Raises:
            ConfigError: the address is malformed, or not on this machine and allow_remote is False.
            PeerLost: no owner listens there.
        """
        return cls(address=address, slot_size=0, num_slots=0, create=False, allow_remote=allow_remote)

    @classmethod
    def attach_limited(
        cls, address: str, *, file_dirs: Sequence[str] = (), allow_remote: bool = False
    ) -> Self:
        """Attach as `attach` does, for an address from an order."""
        return cls.attach(address, allow_remote=allow_remote)

    def close(self) -> None:
        """Disconnect; as the owner, end all connections and free the slots. Idempotent."""
        owner, self._owner = self._owner, None
        if os.getpid() != self._pid:
            return
        if owner is not None:
            owner.close()
        # A write that waits for the owner ends.
        with suppress(OSError, AttributeError):
            self._socket.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None


def _connect(address: str, allow_remote: bool) -> socket.socket:
    _, place = place_of(address, allow_remote)
    try:
        connected = socket.create_connection(place, timeout=PATIENCE_S)
    except OSError as error:
        raise PeerLost(f"cannot reach the owner of the TCP medium at {address!r}: {error}") from None
    if connected.getsockname()[:2] == place:
        # A free port of the range from which the kernel picks can connect to itself.
        connected.close()
        raise PeerLost(f"no owner of a TCP medium listens at {address!r}")
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # What is closed sends nothing more: the bytes of a write that was given up would come when their slot is another one's.
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return connected
