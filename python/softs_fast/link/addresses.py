"""Where links are, as the native thread takes it."""

from __future__ import annotations

from ..trust import Address, Place, check_reachable

__all__ = ["endpoint_of", "place_of"]

_WHAT = "host link"
_WHY = (
    "a link cannot use one host instead of another; name one host, and repeat --connect to connect to several"
)
_REMEDY = (
    "give both hosts the same token file: --token-file, or PEM files: --tls-cert, --tls-key and --tls-ca"
)


def place_of(text: str) -> Place:
    """Return where a link listens, or to which it connects.

    Raises:
        ConfigError: The place is malformed, or has several hosts.
    """
    place = Place.parse(text, _WHAT)
    place.only_address(_WHAT, _WHY)
    return place


def endpoint_of(place: Place, *, is_plain: bool) -> str:
    """Return the endpoint of a place.

    Args:
        place: Place at which a link listens, or to which it connects.
        is_plain: Whether the link has no credentials, and so stays on loopback.

    Raises:
        ConfigError: The link is plain, and other machines could reach it, or it them.
    """
    [address] = place.addresses
    if is_plain:
        # A name that means another machine must be known now: this link may not wait for it.
        check_reachable(Address.parse(address, _WHAT), _WHAT, remedy=_REMEDY)
    return f"tcp://{address}"
