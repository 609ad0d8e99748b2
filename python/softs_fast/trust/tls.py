"""Certificates of servers and clients, for gRPC and for Python's ssl, from PEM files that may be replaced at any time."""

from __future__ import annotations

import hashlib
import logging
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ..durable import write_file
from ..errors import ConfigError
from .addresses import Address
from .kept import Kept, read_public, read_secret

__all__ = ["TlsFiles"]

_LOGGER = logging.getLogger(__name__)
_SELF_SIGNED_DAYS = 3650


@dataclass(frozen=True)
class TlsFiles:
    """Files in which a process proves what it is, and knows what others are.

    Attributes:
        cert: PEM file of the certificate and those that sign it, up to the CA; None if the process has none.
        key: PEM file of the key, which others may not read.
        ca: PEM file of the CA of peers. Without it a server asks for no certificate, and a client uses no TLS.
        self_signed: Whether a server makes the certificate if it is missing, for clients that pin it.

    Raises:
        ConfigError: Only one of cert and key is given.
    """

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    self_signed: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ConfigError("a certificate needs its key: give both, --tls-cert and --tls-key")

    def grpc_server(self, logger: logging.Logger = _LOGGER) -> Any:
        """Return gRPC's credentials of a server, which look at the files at each handshake; None without a certificate.

        Args:
            logger: Logger that is told when the files were read again, or cannot be used any more.

        Raises:
            ConfigError: A file cannot be used.
        """
        if self.cert is None:
            return None
        import grpc

        files = self._kept(logger)
        last = files.now()

        def configuration(pem: _Server) -> Any:
            return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], pem.ca)

        def fetch() -> Any:
            """Return the files if they are others than the last time."""
            nonlocal last
            present = files.now()
            if present is last:
                return None
            last = present
            return configuration(present)

        return grpc.dynamic_ssl_server_credentials(configuration(last), fetch, self.ca is not None)

    def grpc_channel(self, there: Address, options: Sequence[tuple[str, object]]) -> Any:
        """Return gRPC's channel of a client, which connects with its first call; the files are read now.

        Args:
            there: Address of the server.
            options: Options of gRPC.

        Raises:
            ConfigError: A file cannot be used.
        """
        import grpc

        # A proxy for the Internet, which the environment may name, is no way to a server of ours.
        options = [*options, ("grpc.enable_http_proxy", 0)]
        if self.ca is None:
            return grpc.insecure_channel(there.target(), options)
        key = None if self.key is None else read_secret(self.key)
        cert = None if self.cert is None else read_public(self.cert)
        credentials = grpc.ssl_channel_credentials(read_public(self.ca), key, cert)
        return grpc.secure_channel(there.target(), credentials, options)

    def ssl_server(self, protocols: Sequence[str], logger: logging.Logger = _LOGGER) -> ssl.SSLContext:
        """Return a context of a server, which looks at the files at each handshake.

        Args:
            protocols: Names of the protocols above TLS.
            logger: Logger that is told when the files were read again, or cannot be used any more.

        Raises:
            ConfigError: A file cannot be used, or a certificate is to be made and cryptography is not installed.
        """
        files = self._kept(logger)
        first = files.now().context

        def choose(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
            connection.context = files.now().context
            # The protocol is chosen after this.
            connection.context.set_alpn_protocols(list(protocols))

        first.set_alpn_protocols(list(protocols))
        # It is called at each handshake, with a name of the server or without.
        first.sni_callback = choose
        return first

    def pin(self) -> bytes | None:
        """Return the SHA-256 of a self-signed certificate; None of one that an authority has signed.

        Raises:
            ConfigError: The certificate cannot be read.
        """
        if not self.self_signed or self.cert is None:
            return None
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(read_public(self.cert).decode())).digest()

    def _kept(self, logger: logging.Logger) -> Kept[_Server]:
        paths = [path for path in (self.cert, self.key, self.ca) if path is not None]
        return Kept(paths, self._read_server, logger)

    def _read_server(self) -> _Server:
        cert, key = self.cert, self.key
        if cert is None or key is None:
            raise ConfigError(
                "TLS of a server needs a certificate and its key: give --tls-cert and --tls-key"
            )
        if self.self_signed and not (cert.exists() and key.exists()):
            _make(cert, key)
        found = _Server(
            read_secret(key), read_public(cert), None if self.ca is None else read_public(self.ca)
        )
        try:
            # An encrypted key is refused; without a password OpenSSL would ask for one on the terminal.
            found.context.load_cert_chain(cert, key, password="")
            if self.ca is not None:
                found.context.load_verify_locations(self.ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"{cert} and {key} are no certificate with its key: {error}") from None
        return found


class _Server:
    """What the files of a server hold."""

    def __init__(self, key: bytes, cert: bytes, ca: bytes | None) -> None:
        self.key, self.cert, self.ca = key, cert, ca
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2


def _make(cert: Path, key: Path) -> None:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError as error:
        raise ConfigError(
            f"a certificate of its own needs cryptography: {error}; pip install 'softs-fast[server]', or give "
            "--tls-cert and --tls-key"
        ) from None
    made = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "softs-fast")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .issuer_name(name)
        .subject_name(name)
        .public_key(made.public_key())
        .serial_number(x509.random_serial_number())
        # Clocks of workers may be wrong by much.
        .not_valid_before(now - timedelta(days=365))
        .not_valid_after(now + timedelta(days=_SELF_SIGNED_DAYS))
        .sign(made, hashes.SHA256())
    )
    pem_key = made.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        write_file(key, pem_key)
        write_file(cert, certificate.public_bytes(serialization.Encoding.PEM))
    except OSError as error:
        raise ConfigError(f"cannot write {cert} and {key}: {error.strerror}") from None
