"""Names of network interfaces, by their addresses: gloo takes a name."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

from ...errors import ConfigError

__all__ = ["interface_of"]

#: Address, index, bits of the prefix, scope, flags and name of each interface with IPv6.
_INET6 = Path("/proc/net/if_inet6")
#: Of <linux/sockios.h>: returns the first address of an interface, in a `struct ifreq`.
_SIOCGIFADDR = 0x8915
_IFREQ = struct.Struct("16s24x")
_ADDRESS_AT = 20


def interface_of(address: str) -> str:
    """Return the network interface of this host that has an address.

    Args:
        address: numeric, IPv4 or IPv6; of IPv4 the first one of its interface.

    Raises:
        ConfigError: none has it.
    """
    wanted = ipaddress.ip_address(address)
    for _, name in socket.if_nameindex():
        if wanted in _addresses(name) or (wanted.is_loopback and name == "lo"):
            return name
    raise ConfigError(
        f"no network interface has {address} as its first address, by which this host reaches the master; name one for "
        "gloo in GLOO_SOCKET_IFNAME"
    )


def _addresses(name: str) -> set[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    found: set[ipaddress.IPv4Address | ipaddress.IPv6Address] = set()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, _IFREQ.pack(name.encode()[:15]))
            found.add(ipaddress.IPv4Address(answer[_ADDRESS_AT : _ADDRESS_AT + 4]))
        except OSError:
            pass  # it has none of IPv4
    try:
        lines = _INET6.read_text(encoding="ascii").splitlines()
    except OSError:
        lines = []  # this host has no IPv6
    for line in lines:
        digits, *_, theirs = line.split()
        if theirs == name:
            found.add(ipaddress.IPv6Address(bytes.fromhex(digits)))
    return found
