"""The line that a server prints and a worker is started with: where, which job, a secret, a certificate."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from ...errors import ConfigError
from ...trust import Place, TlsFiles

__all__ = ["JOB_BYTES", "SECRET_BYTES", "Invite", "checked_url"]

JOB_BYTES, SECRET_BYTES = 16, 32
_PIN_BYTES = 32
_NAME = "softs1"
_PLACE = "softs://"
_MAX_URL = 1024


@dataclass(frozen=True)
class Invite:
    """What a worker must know. As text: `softs1.JOB.SECRET.PIN@URL`, without spaces; PIN is "-" without a certificate of its own.

    Where a token file proves what both ends are, its text is the place of the server, and workers ask the server for job and
    secret.

    Attributes:
        url: URL of the server or of the tunnel to it; without a slash at its end.
        job: 16 random bytes; weights and gradients of another job are refused.
        secret: 32 random bytes. It travels to none but holders of the token file, by TLS.
        pin: SHA-256 of the server's certificate in DER, which is then the only one that is accepted; None where a
            public authority has signed it, or without TLS.
        place: Place of the server, with the token file of its job; None without one.
    """

    url: str
    job: bytes
    secret: bytes = field(repr=False)
    pin: bytes | None = None
    place: Place | None = None

    def __post_init__(self) -> None:
        checked_url(self.url)
        for name, n in (("job", JOB_BYTES), ("secret", SECRET_BYTES), ("pin", _PIN_BYTES)):
            value = getattr(self, name)
            if value is not None and len(value) != n:
                raise ConfigError(f"the {name} of an invite has {len(value)} bytes; need {n}")
        if self.pin is not None and not self.url.startswith("https://"):
            raise ConfigError(f"an invite pins a certificate, and {self.url} has none; need https://")

    def __str__(self) -> str:
        """Return the line to paste. It holds the secret: show it to the people that may train, and to no log."""
        if self.place is not None:
            return str(self.place)
        pin = "-" if self.pin is None else _text(self.pin)
        return f"{_NAME}.{self.job.hex()}.{_text(self.secret)}.{pin}@{self.url}"

    @classmethod
    def parse(cls, line: str) -> Invite:
        """Read the line, or a place with a token file; the port is 8000 unless it is given.

        Raises:
            ConfigError: a part is missing, cut off, or not of this form; the text does not show the secret.
        """
        line = line.strip().strip("'\"")
        if line.startswith(_PLACE):
            place = Place.parse(line, "parameter server")
            place = replace(place, token_file=place.credentials_or(TlsFiles()).token_file)
            if place.token_file is None:
                raise ConfigError(
                    f"{line} names no token file; add ?token_file=FILE, or paste the invite of the server"
                )
            return cls(f"https://{place.addresses[0]}", bytes(JOB_BYTES), bytes(SECRET_BYTES), place=place)
        found = re.fullmatch(r"(\w+)\.([0-9a-f]+)\.([\w-]+)\.([\w-]+)@(\S+)", line, re.ASCII)
        if found is None or found[1] != _NAME:
            raise ConfigError(
                f"an invite of {len(line)} characters is not `{_NAME}.JOB.SECRET.PIN@URL`; paste the whole line that the server "
                "printed, or give softs://HOST/JOB?token_file=FILE"
            )
        try:
            job, secret = bytes.fromhex(found[2]), _bytes(found[3])
            pin = None if found[4] == "-" else _bytes(found[4])
        except (ValueError, binascii.Error):
            raise ConfigError(
                "an invite was cut off or changed; paste the whole line that the server printed"
            ) from None
        return cls(found[5].rstrip("/"), job, secret, pin)

    def moved(self, url: str) -> Invite:
        """Return the invite of the same job at another URL.

        Raises:
            ConfigError: it is no URL, or has no TLS for the certificate that is pinned.
        """
        return replace(self, url=checked_url(url.strip().rstrip("/")))


def checked_url(url: str) -> str:
    """Return the URL of a server.

    Raises:
        ConfigError: it is not http:// or https:// with a host, or has a query, a fragment, a name or a password.
    """
    try:
        parts = urlsplit(url)
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError:
        raise ConfigError(f"{url[:80]!r} is no URL; need such as https://host:8000") from None
    odd = parts.query or parts.fragment or parts.username is not None or url.endswith("/")
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or odd
        or not port_is_valid
        or len(url) > _MAX_URL
    ):
        raise ConfigError(f"{url[:80]!r} is no URL of a server; need such as https://host:8000")
    return url


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if _text(data) != text:
        raise ValueError("bits that are left over are not 0")
    return data
