"""Addresses of links, as the native thread takes them."""

from __future__ import annotations

from ..trust import Address, bracketed, check_reachable

__all__ = ["PORT", "endpoint_of"]

#: Port of a link if its address names none.
PORT = 4700
_WHAT = "host link"
_REMEDY = (
    "give both hosts the same token file: --token-file, or PEM files: --tls-cert, --tls-key and --tls-ca"
)


def endpoint_of(text: str, *, is_plain: bool) -> str:
    """Return the endpoint of an address, HOST or HOST:PORT.

    Args:
        text: Address at which a link listens, or to which it connects.
        is_plain: Whether the link has no credentials, and so stays on loopback.

    Raises:
        ConfigError: The address is malformed; or the link is plain, and other machines could reach it, or it them.
    """
    host, port = Address.split(text, _WHAT, default_port=PORT)
    place = f"{bracketed(host)}:{port}"
    if is_plain:
        # A name that means another machine must be known now: this link may not wait for it.
        check_reachable(Address.parse(place, _WHAT), _WHAT, remedy=_REMEDY)
    return f"tcp://{place}"
