"""The owner's side of softs' protocol for samples through TCP.

A writer sends the byte offset and the length of a sample, u32 each and big-endian, then the sample, and waits for one
byte: 1 if it is stored. An owner of softs-fast takes whole slots alone. It answers anything else with 0, and ends the
connection before it reads the bytes.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
from contextlib import suppress

from ..._core import is_ours
from ...errors import ConfigError, PeerLost, SegmentError
from ...process import join
from ...repeated_log import RepeatedLog
from ...trust import Address, bracketed, check_reachable

__all__ = ["HEADER", "PATIENCE_S", "STORED", "Owner", "place_of"]

logger = logging.getLogger(__name__)

#: Offset and length in front of a sample.
HEADER = struct.Struct("!II")
STORED, _REFUSED = b"\1", b"\0"
#: Offsets have 32 bits.
_MAX_BYTES = 0xFFFF_FFFF
#: After so long without progress a writer gives an owner up, and an owner a writer that is within a sample.
PATIENCE_S = 10.0
_MAX_WRITERS = 1024
#: Bytes of samples that are being received, of all writers together; one sample is always allowed.
_MAX_INCOMING_BYTES = 64 << 20
#: Without a file descriptor left, accepting is tried again after this time.
_RETRY_S = 1.0


class Owner:
    """The slots, a thread that accepts writers, and one that receives for each of them.

    Args:
        address: Where to listen, ``host:port``.
        slot_size: Bytes of one slot.
        num_slots: Number of slots.
        allow_remote: Whether other machines may reach the address, and writers of other users are welcome.

    Attributes:
        address: Numeric address with the port that it really got.

    Raises:
        ConfigError: The address is malformed or not allowed, or offsets cannot reach all slots.
        PeerLost: The system refused the address.
    """

    def __init__(self, address: str, slot_size: int, num_slots: int, allow_remote: bool) -> None:
        if slot_size < 1 or num_slots < 1 or slot_size * num_slots > _MAX_BYTES:
            raise ConfigError(
                "slot_size and num_slots must be at least 1, and all slots of a TCP medium together less than 4 GiB, "
                f"got {slot_size} and {num_slots}"
            )
        self._slot_size = slot_size
        self._slots = memoryview(bytearray(slot_size * num_slots))
        self._listener = _listen(address, allow_remote)
        host, port = self._listener.getsockname()[:2]
        self.address = f"{bracketed(host)}:{port}"
        self._allow_remote = allow_remote
        self._pid = os.getpid()
        # Reentrant: the garbage collector may close the medium while a thread of its owner holds the lock.
        self._lock = threading.RLock()
        self._writers: dict[socket.socket, threading.Thread] = {}
        self._incoming = threading.BoundedSemaphore(max(1, _MAX_INCOMING_BYTES // slot_size))
        self._closed = threading.Event()
        self._log = RepeatedLog(logger)
        self._thread = threading.Thread(target=self._accept, name="softs-tcp-medium", daemon=True)
        self._thread.start()

    def write(self, offset: int, data: memoryview) -> None:
        """Store bytes anywhere within the slots.

        Raises:
            SegmentError: the range is outside of the slots, or they are closed.
        """
        with self._lock:
            self._range(offset, len(data))[:] = data

    def read(self, offset: int, n_bytes: int) -> bytes:
        """Copy bytes out.

        Raises:
            SegmentError: the range is outside of the slots, or they are closed.
        """
        with self._lock:
            return bytes(self._range(offset, n_bytes))

    def _range(self, offset: int, n_bytes: int) -> memoryview:
        if not 0 <= offset <= len(self._slots) - n_bytes:
            raise SegmentError(
                f"TCP medium {self.address!r}: {n_bytes} bytes at offset {offset} are outside the slots"
            )
        return self._slots[offset : offset + n_bytes]

    def close(self) -> None:
        """End all connections and threads, and free the slots. Idempotent; nothing happens in a fork."""
        if os.getpid() != self._pid:
            return
        self._closed.set()
        with self._lock:
            threads = [self._thread, *self._writers.values()]
            for one in (self._listener, *self._writers):
                # Wakes the thread that waits for it.
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            self._slots = memoryview(b"")
        # The garbage collector may run in a thread of this owner, which cannot wait for itself.
        if threading.current_thread() not in threads:
            for thread in threads:
                join(thread)

    def _accept(self) -> None:
        with self._listener:
            while not self._closed.is_set():
                try:
                    writer, peer = self._listener.accept()
                except OSError:
                    self._closed.wait(_RETRY_S)
                    continue
                try:
                    self._welcome(writer, peer[:2])
                except (OSError, RuntimeError) as error:
                    writer.close()
                    text = f"TCP medium {self.address!r} has closed the connection of a writer: {error}"
                    self._log.log(logging.WARNING, type(error).__name__, text)
        self._log.flush()

    def _welcome(self, writer: socket.socket, peer: tuple[str, int]) -> None:
        """Begin to receive from a writer.

        Raises:
            PeerLost: It may not write, or there are too many.
            OSError: It is gone.
            RuntimeError: The system has no thread for it.
        """
        if not self._allow_remote and not is_ours(peer, writer.getsockname()[:2]):
            raise PeerLost(
                f"it is gone, or of another user than {os.getuid()}; pass allow_remote=True to welcome all"
            )
        # The writers of a host that is gone are closed after some minutes.
        writer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        writer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
        thread = threading.Thread(target=self._serve, args=(writer,), name="softs-tcp-writer", daemon=True)
        with self._lock:
            if self._closed.is_set():
                raise PeerLost("the medium is closed")
            if len(self._writers) >= _MAX_WRITERS:
                raise PeerLost(f"there are {_MAX_WRITERS} writers already")
            thread.start()
            self._writers[writer] = thread

    def _serve(self, writer: socket.socket) -> None:
        header = bytearray(HEADER.size)
        answer = STORED
        try:
            while answer == STORED:
                writer.settimeout(None)
                _fill(writer, header)
                writer.settimeout(PATIENCE_S)
                answer = self._receive(writer, *HEADER.unpack(header))
                writer.sendall(answer)
        except OSError:
            # It is gone or stands still. It has no answer, so its order fails at its own end.
            pass
        finally:
            with self._lock:
                self._writers.pop(writer, None)
            writer.close()

    def _receive(self, writer: socket.socket, offset: int, length: int) -> bytes:
        """Receive a sample, which becomes the slot when it is complete: a reader never sees half of one."""
        if length != self._slot_size or offset % length != 0 or offset + length > len(self._slots):
            return _REFUSED
        with self._incoming:
            sample = bytearray(length)
            _fill(writer, sample)
            self.write(offset, memoryview(sample))
        return STORED


def _fill(writer: socket.socket, buffer: bytearray) -> None:
    """Fill a buffer.

    Raises:
        OSError: The connection has ended, or was silent for its time-out.
    """
    rest = memoryview(buffer)
    while rest:
        n_bytes = writer.recv_into(rest)
        if n_bytes == 0:
            raise PeerLost("the writer is gone")
        rest = rest[n_bytes:]


def place_of(address: str, allow_remote: bool) -> tuple[Address, tuple[str, int]]:
    """Look an address up; return also where to listen or to connect: by IPv4 if it has one, as softs knows no other.

    Raises:
        ConfigError: The address is malformed, or other machines can reach it and allow_remote is False.
    """
    found = Address.parse(address, "TCP medium")
    remedy = (
        "stay on 127.0.0.1, join the hosts by a link, or pass allow_remote=True on a network that you trust"
    )
    check_reachable(found, "TCP medium", insecure=allow_remote, remedy=remedy)
    return found, (min(found.numeric, key=lambda numeric: ":" in numeric), found.port)


def _listen(address: str, allow_remote: bool) -> socket.socket:
    found, place = place_of(address, allow_remote)
    if found.is_unspecified:
        raise ConfigError(
            f"suppliers connect to the address of a TCP medium, which must be one of this host, got {address!r}; "
            "pass host= with an address or a name that they reach"
        )
    family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
    try:
        return socket.create_server(place, family=family)
    except OSError as error:
        raise PeerLost(f"TCP medium cannot listen at {address!r}: {error}") from None
