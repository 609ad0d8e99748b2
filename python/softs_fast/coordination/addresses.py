"""Where a coordinator listens, and at which of these addresses it needs no encryption."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from ..errors import ConfigError

__all__ = ["Address", "UnknownHostError", "own_address", "parse_address"]


class UnknownHostError(ConfigError):
    """The name of a host cannot be looked up: it is wrong, or not there yet."""


@dataclass(frozen=True)
class Address:
    """An address.

    Attributes:
        host: Host as given: a name or a numeric address.
        port: Port as given.
        numeric: Numeric addresses of the host.
    """

    host: str
    port: int
    numeric: tuple[str, ...]

    @property
    def is_loopback(self) -> bool:
        """Whether no other machine can reach it."""
        return all(ipaddress.ip_address(one).is_loopback for one in self.numeric)

    def target(self, port: int | None = None) -> str:
        """Return ``host:port``, with another port if one is given."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port if port is None else port}"


def parse_address(text: str, what: str = "coordinator") -> Address:
    """Split ``host:port`` and look the host up; `what` listens there, for texts.

    Raises:
        ConfigError: it is malformed, or the host is not known.
    """
    host, colon, digits = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (digits.isascii() and digits.isdigit() and int(digits) < 1 << 16):
        raise ConfigError(f"address of {what}: have {text!r}, need host:port")
    try:
        found = socket.getaddrinfo(host, int(digits), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UnknownHostError(f"address of {what} {text!r}: {error}") from None
    numeric = dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found)
    return Address(host, int(digits), tuple(numeric))


def own_address(there: Address) -> str:
    """Return the address that this machine has on the way to another one; nothing is sent.

    Raises:
        ConfigError: there is no way.
    """
    for numeric in there.numeric:
        family = socket.AF_INET6 if ":" in numeric else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((numeric, there.port or 1))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    raise ConfigError(f"no way from this machine to {there.target()}, at {', '.join(there.numeric)}")
