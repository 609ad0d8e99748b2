"""Which user is at the other end of a connection of this machine: the kernel knows the owner of each socket.

As `rust/net/src/transport/tcp_owner.rs` does it for brokers: by ``sock_diag(7)``.
"""

from __future__ import annotations

import os
import socket
import struct
import sys

__all__ = ["is_ours"]

_SOCK_DIAG, _BY_FAMILY, _REQUEST = 4, 20, 1
_ESTABLISHED = 1
#: struct nlmsghdr: length, type, flags, sequence, port.
_HEADER = struct.Struct("=IHHII")
#: struct inet_diag_req_v2 up to the addresses: family, protocol, extensions, padding, states, ports.
_ASKED = struct.Struct("=BBBxI")
_NO_COOKIE = struct.pack("=III", 0, 0xFFFF_FFFF, 0xFFFF_FFFF)
#: struct inet_diag_msg: family, state, 2 bytes, 48 bytes of addresses, expires, queues, then the user.
_STATE, _UID = 1, 64


def is_ours(peer: tuple[str, int], own: tuple[str, int]) -> bool:
    """Return whether the peer of a connection on loopback is this user or root; False if the kernel does not tell.

    Args:
        peer: Numeric address and port of the peer.
        own: Numeric address and port of this end.
    """
    # A server that listens on IPv6 too may have the connection as one of IPv4 in IPv6.
    for family, mapped in ((socket.AF_INET, False), (socket.AF_INET6, True)):
        packed = [_pack(host, family, mapped) for host, _ in (peer, own)]
        if None in packed:
            continue
        ports = struct.pack("!HH", peer[1], own[1])
        uid = _owner(family, ports + b"".join(place.ljust(16, b"\0") for place in packed if place))
        if uid is not None:
            return uid in (os.getuid(), 0)
    return False


def _pack(host: str, family: int, mapped: bool) -> bytes | None:
    try:
        if ":" in host:
            return socket.inet_pton(family, host) if family == socket.AF_INET6 else None
        return socket.inet_pton(family, f"::ffff:{host}" if mapped else host)
    except OSError:
        return None


def _owner(family: int, connection: bytes) -> int | None:
    """Return the user of the socket with these ports and addresses, its own ones first."""
    body = _ASKED.pack(family, socket.IPPROTO_TCP, 0, 1 << _ESTABLISHED) + connection + _NO_COOKIE
    request = _HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST, 0, 0) + body
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
            kernel.sendto(request, (0, 0))
            answer = kernel.recv(4096)
    except OSError:
        return None
    _, kind, _, _, _ = _HEADER.unpack_from(answer)
    message = answer[_HEADER.size :]
    if kind != _BY_FAMILY or len(message) < _UID + 4 or message[_STATE] != _ESTABLISHED:
        return None
    return int.from_bytes(message[_UID : _UID + 4], sys.byteorder)
