"""Addresses of servers, and at which of them a server needs encryption and a proof of identity."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass

from ..errors import ConfigError

__all__ = ["Address", "UnknownHostError", "bracketed", "check_reachable", "is_loopback"]

_NAME = re.compile(r"[A-Za-z0-9._-]+")
#: All interfaces as a host of an endpoint, any port as its port.
_ANY = "*"
_TLS_REMEDY = "give --token-file, or --tls-cert, --tls-key and --tls-ca, or listen at 127.0.0.1"
_PROOF_REMEDY = "give --tls-ca, or listen at 127.0.0.1"


class UnknownHostError(ConfigError):
    """The name of a host cannot be looked up: it is wrong, or not there yet."""


@dataclass(frozen=True)
class Address:
    """An address that was looked up.

    Attributes:
        host: Host as given, without brackets: a name or a numeric address.
        port: Port as given; 0 for one that is chosen when a server listens.
        numeric: Numeric addresses of the host, at least one.
    """

    host: str
    port: int
    numeric: tuple[str, ...]

    @classmethod
    def parse(cls, text: str, what: str, scheme: str = "") -> Address:
        """Split an address, and look its host up; the arguments are those of `split`.

        Raises:
            ConfigError: It is malformed.
            UnknownHostError: The host is not known.
        """
        host, port = cls.split(text, what, scheme)
        try:
            found = socket.getaddrinfo("0.0.0.0" if host == _ANY else host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise UnknownHostError(f"address of {what} {text!r}: {error}") from None
        return cls(host, port, tuple(dict.fromkeys(str(entry[4][0]) for entry in found)))

    @staticmethod
    def split(text: str, what: str, scheme: str = "", default_port: int | None = None) -> tuple[str, int]:
        """Return host and port as given, without a look-up; the host is without brackets.

        Args:
            text: Text of the form HOST:PORT, after the scheme.
            what: Name of the server at the address, for errors.
            scheme: Scheme of endpoints, ``tcp://``, where host and port may be ``*``; empty for an address.
            default_port: Port of an address that is a host alone; None refuses it.

        Raises:
            ConfigError: It is malformed.
        """
        host, _, digits = text.removeprefix(scheme).rpartition(":")
        # A number alone is meant as a port.
        if default_port is not None and _is_host(text) and not text.isdigit():
            host, digits = text, str(default_port)
        any_host, any_port = (scheme and one == _ANY for one in (host, digits))
        is_port = digits.isascii() and digits.isdigit() and len(digits) < 6 and int(digits) < 1 << 16
        if not (text.startswith(scheme) and (any_host or _is_host(host)) and (any_port or is_port)):
            need = f"{scheme}HOST:PORT, such as {scheme}127.0.0.1:8000 or {scheme}[::1]:8000"
            raise ConfigError(f"address of {what} is {text!r}; expected {need}")
        return host.removeprefix("[").removesuffix("]"), 0 if any_port else int(digits)

    @property
    def is_loopback(self) -> bool:
        """Whether no other machine can reach it: this holds of a name only if it holds of all its addresses."""
        return all(map(is_loopback, self.numeric))

    @property
    def is_unspecified(self) -> bool:
        """Whether it stands for all addresses of a machine, so that no peer can connect to it."""
        return any(ipaddress.ip_address(one).is_unspecified for one in self.numeric)

    @property
    def family(self) -> socket.AddressFamily:
        """Family of a socket at the first numeric address."""
        return _family(self.numeric[0])

    def target(self, port: int | None = None) -> str:
        """Return ``host:port``, with another port if one is given."""
        return f"{bracketed(self.host)}:{self.port if port is None else port}"

    def own_side(self) -> str:
        """Return the numeric address that this machine has on the way there; nothing is sent.

        Raises:
            ConfigError: There is no way.
        """
        for numeric in self.numeric:
            with socket.socket(_family(numeric), socket.SOCK_DGRAM) as probe:
                try:
                    probe.connect((numeric, self.port or 1))
                except OSError:
                    continue
                return str(probe.getsockname()[0])
        raise ConfigError(f"no way from this machine to {self.target()}, at {', '.join(self.numeric)}")


def bracketed(host: str) -> str:
    """Return a host as it stands before a port: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def is_loopback(numeric: str) -> bool:
    """Return whether no other machine can reach a numeric address."""
    return ipaddress.ip_address(numeric).is_loopback


def check_reachable(
    address: Address,
    what: str,
    *,
    tls: bool = False,
    proof: bool = False,
    insecure: bool = False,
    remedy: str = _TLS_REMEDY,
) -> None:
    """Check that other machines cannot reach an address, or that TLS and a proof of identity protect it.

    Args:
        address: Address at which a server listens, or to which a client connects.
        what: Name of the server, for the text.
        tls: Whether connections are encrypted.
        proof: Whether peers must prove what they are.
        insecure: Whether the user has said that neither is needed.
        remedy: Remedy where TLS is missing.

    Raises:
        ConfigError: The address is not protected.
    """
    if insecure or address.is_loopback or (tls and proof):
        return
    lack = "a proof of identity" if tls else "TLS"
    raise ConfigError(
        f"{what} at {address.target()} is reachable from other machines without {lack}; {_PROOF_REMEDY if tls else remedy}"
    )


def _family(numeric: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in numeric else socket.AF_INET


def _is_host(text: str) -> bool:
    inner = text.removeprefix("[")
    if inner == text:
        return _NAME.fullmatch(text) is not None
    try:
        ipaddress.IPv6Address(inner.removesuffix("]"))
    except ValueError:
        return False
    return inner.endswith("]")
