"""Certificates and tokens: files in which a process proves what it is, and knows what others are.

Files may be replaced at any time: a server looks at them at each handshake, a client at each connection.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError
from .addresses import Address

__all__ = ["ClientCredentials", "Pem", "ServerCredentials", "file_version", "read_token", "read_tokens"]

#: Of a file of certificates, a key or tokens.
_MAX_FILE_BYTES = 1 << 20
#: 128 bits in base64 without padding.
_MIN_TOKEN = 22
_TOKEN = re.compile(rf"[\x21-\x7e]{{{_MIN_TOKEN},512}}")


@dataclass(frozen=True)
class Pem:
    """The contents of PEM files.

    Attributes:
        certificate: Certificate chain of this process; None if it has none.
        key: Key of the certificate; None without a certificate.
        ca: CA that signs the certificates of peers; None if peers are not asked for a certificate.
    """

    certificate: bytes | None
    key: bytes | None
    ca: bytes | None


@dataclass(frozen=True)
class ServerCredentials:
    """What a coordinator proves itself with, and how it knows others.

    Attributes:
        cert: PEM file of its certificate and those that sign it, up to the CA.
        key: PEM file of the key.
        ca: PEM file of the CA of workers and administrators; without it they need no certificates.
        tokens: file with a line "NAME TOKEN" for each worker and administrator.
        admins: names that may evict, drain, resize and end; none of them can have a seat.

    Raises:
        ConfigError: only one of cert and key is given, or a CA without them.
    """

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    tokens: Path | None = None
    admins: tuple[str, ...] = ("admin",)

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None) or (self.cert is None and self.ca is not None):
            raise ConfigError(
                "TLS of a coordinator needs a certificate and its key: give both, --tls-cert and --tls-key"
            )

    @property
    def proves_identity(self) -> bool:
        """Whether peers must prove what they are."""
        return self.ca is not None or self.tokens is not None

    def check(self, address: Address, what: str = "coordinator") -> None:
        """Raise unless these credentials suffice for an address, at which `what` listens.

        Raises:
            ConfigError: other machines could reach it without encryption, or without a proof of identity.
        """
        if address.is_loopback:
            return
        if self.cert is None:
            raise ConfigError(
                f"{what} at {address.target()} would be reachable from other machines without encryption; give "
                "--tls-cert and --tls-key, or listen at 127.0.0.1"
            )
        if not self.proves_identity:
            raise ConfigError(
                f"{what} at {address.target()} would be reachable from other machines, and they would not have to "
                "prove what they are; give --tls-ca, or --token-file"
            )

    def read(self) -> Pem | None:
        """Read the PEM files; None if there are none.

        Raises:
            ConfigError: a file cannot be read, or others can read the key.
        """
        if self.cert is None or self.key is None:
            return None
        return Pem(_read(self.cert), _read(self.key, secret=True), _read(self.ca) if self.ca else None)

    def version(self) -> tuple[object, ...]:
        """Return what changes with the PEM files."""
        return tuple(file_version(path) for path in (self.cert, self.key, self.ca))


@dataclass(frozen=True)
class ClientCredentials:
    """What a worker or an administrator proves itself with, and how it knows the coordinator.

    Attributes:
        ca: PEM file of the CA of the coordinator; None: no TLS, on loopback only.
        cert: PEM file of its own certificate, if the coordinator asks for one.
        key: PEM file of the key.
        token: file with its token, if the coordinator asks for one.

    Raises:
        ConfigError: only one of cert and key is given, or they are without a CA.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    token: Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ConfigError("a certificate needs its key: give both, or none")
        if self.ca is None and self.cert is not None:
            raise ConfigError("TLS needs the CA of the coordinator: give --tls-ca")

    def check(self, address: Address, what: str = "coordinator") -> None:
        """Raise unless these credentials suffice for an address, at which `what` listens.

        Raises:
            ConfigError: the address is of another machine, and there is no TLS.
        """
        if self.ca is None and not address.is_loopback:
            raise ConfigError(
                f"{what} at {address.target()} is on another machine, and a connection without TLS is not made; "
                "give --tls-ca"
            )

    def read(self) -> Pem | None:
        """Read the PEM files; None if there are none.

        Raises:
            ConfigError: a file cannot be read, or others can read the key.
        """
        if self.ca is None:
            return None
        certificate = _read(self.cert) if self.cert else None
        return Pem(certificate, _read(self.key, secret=True) if self.key else None, _read(self.ca))

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return what goes with each call: the token, if there is one.

        Raises:
            ConfigError: the file cannot be read, others can read it, or it has no token.
        """
        return () if self.token is None else (("authorization", f"Bearer {read_token(self.token)}"),)


def read_token(path: Path) -> str:
    """Read a file with one token.

    Raises:
        ConfigError: it cannot be read, others can read it, or it has no token of 128 bits.
    """
    return _check_token(path, 1, _decode(path, _read(path, secret=True)).strip())


def read_tokens(path: Path) -> dict[bytes, str]:
    """Read a file with a line "NAME TOKEN" for each identity; empty lines and those with "#" in front do not count.

    Returns:
        Names by the SHA-256 of their tokens: how long a search takes tells nothing about a token.

    Raises:
        ConfigError: it cannot be read, others can read it, or a line is malformed.
    """
    names: dict[bytes, str] = {}
    for number, line in enumerate(_decode(path, _read(path, secret=True)).splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2:
            raise ConfigError(f'{path}, line {number}: has {len(words)} words; need "NAME TOKEN"')
        digest = hashlib.sha256(_check_token(path, number, words[1]).encode()).digest()
        if digest in names:
            raise ConfigError(
                f"{path}, line {number}: {words[0]} has the token of {names[digest]}; each needs its own"
            )
        names[digest] = words[0]
    return names


def _check_token(path: Path, number: int, token: str) -> str:
    if not _TOKEN.fullmatch(token):
        raise ConfigError(
            f"{path}, line {number}: a token has {_MIN_TOKEN} to 512 characters of ASCII without spaces, 128 random bits "
            "or more; make one: openssl rand -hex 32"
        )
    return token


def _decode(path: Path, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no text: {error}") from None


def file_version(path: Path | None) -> tuple[int, int, int] | None:
    """Return what changes with a file; None if there is none."""
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(path: Path, secret: bool = False) -> bytes:
    """Read a file; of a secret its owner must be this user or root, and others may not read it."""
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigError(
            f"{path} has more than {_MAX_FILE_BYTES} bytes; it is no file of certificates or tokens"
        )
    if secret and (found.st_uid not in (os.getuid(), 0) or found.st_mode & (stat.S_IRWXO | stat.S_IWGRP)):
        raise ConfigError(f"{path} is a secret that other users can read or replace; chmod 600 {path}")
    return data
