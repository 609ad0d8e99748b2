"""Certificates of servers and clients, for gRPC and for Python's ssl, from files that may be replaced at any time."""

from __future__ import annotations

import base64
import binascii
import errno
import hashlib
import logging
import os
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from ..durable import write_file
from ..errors import ConfigError
from .addresses import Address
from .kept import Kept, read_public, read_secret
from .tokens import read_tokens

__all__ = ["Der", "TlsFiles", "jobs_of"]

_LOGGER = logging.getLogger(__name__)
#: Key (PKCS#8), certificates and CAs of peers, as the native side takes them.
Der = tuple[bytes, list[bytes], list[bytes]]
# In the name of the CA that a token makes: the start of its fingerprint.
_JOB = re.compile(rb"softs-fast job ([0-9a-f]{32})")
#: MFD_NOEXEC_SEAL of Linux.
_NOEXEC_SEAL = 0x8


@dataclass(frozen=True)
class TlsFiles:
    """Files in which a process proves what it is, and knows what others are: a token file, or PEM files.

    From the token file of its job a process makes a certificate for itself in memory, and each end of a connection must
    show one: holders of the token talk to each other, and to no others.

    Attributes:
        cert: PEM file of the certificate and those that sign it, up to the CA; None if the process has none.
        key: PEM file of the key, which others may not read.
        ca: PEM file of the CA of peers. Without it a server asks for no certificate, and a client uses no TLS.
        token_file: Token file of the job, instead of the other three.
        self_signed: Whether a server makes the certificate if it is missing, for clients that pin it.

    Raises:
        ConfigError: Only one of cert and key is given, or PEM files beside a token file.
    """

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    token_file: Path | None = None
    self_signed: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ConfigError("a certificate needs its key: give both, --tls-cert and --tls-key")
        if self.token_file is not None and (self.cert is not None or self.ca is not None):
            raise ConfigError(
                "a token file makes the certificates: give --token-file, or --tls-cert, --tls-key and --tls-ca"
            )

    @property
    def has_certificate(self) -> bool:
        """Whether the process has a certificate; without one a server uses no TLS."""
        return self.cert is not None or self.token_file is not None

    @property
    def verifies_peers(self) -> bool:
        """Whether peers must have a certificate; without that a client uses no TLS."""
        return self.ca is not None or self.token_file is not None

    def server_name(self, host: str) -> str:
        """Return the name that the certificate of the server at a host must have."""
        return host if self.token_file is None else _certificates().SERVER_NAME

    def grpc_server(self, logger: logging.Logger = _LOGGER) -> Any:
        """Return gRPC's credentials of a server, which look at the files at each handshake; None without a certificate.

        Args:
            logger: Logger that is told when the files were read again, or cannot be used any more.

        Raises:
            ConfigError: A file cannot be used.
        """
        if not self.has_certificate:
            return None
        import grpc

        files = self._kept(logger)
        last: _Pem | None = None

        def fetch() -> Any:
            """Return the files if they are others than the last time."""
            nonlocal last
            present, _ = files.now()
            if present is last:
                return None
            last = present
            assert present.key is not None
            assert present.cert is not None
            return grpc.ssl_server_certificate_configuration([(present.key, present.cert)], present.ca)

        return grpc.dynamic_ssl_server_credentials(fetch(), fetch, self.verifies_peers)

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
        if not self.verifies_peers:
            return grpc.insecure_channel(there.target(), options)
        pem = self._read()
        if self.token_file is not None:
            options.append(("grpc.ssl_target_name_override", self.server_name(there.host)))
        return grpc.secure_channel(
            there.target(), grpc.ssl_channel_credentials(pem.ca, pem.key, pem.cert), options
        )

    def ssl_server(self, protocols: Sequence[str], logger: logging.Logger = _LOGGER) -> ssl.SSLContext:
        """Return a context of a server, which looks at the files at each handshake.

        Args:
            protocols: Names of the protocols above TLS.
            logger: Logger that is told when the files were read again, or cannot be used any more.

        Raises:
            ConfigError: A file cannot be used, or a certificate is to be made and cryptography is not installed.
        """
        files = self._kept(logger)
        _, first = files.now()

        def choose(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
            _, connection.context = files.now()
            # The protocol is chosen after this.
            connection.context.set_alpn_protocols(list(protocols))

        first.set_alpn_protocols(list(protocols))
        # It is called at each handshake, with a name of the server or without.
        first.sni_callback = choose
        return first

    def ssl_client(self) -> ssl.SSLContext:
        """Return a context of a client of a server that has certificates of the same files, which are read now.

        Raises:
            ConfigError: A file cannot be used.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.load(context)
        return context

    def der(self) -> Der | None:
        """Return key (PKCS#8), certificates and CAs of peers in DER, as they are now; None without files.

        They are for an end that connects and is connected to: it shows a certificate, and demands one.

        Raises:
            ConfigError: A file cannot be used, or certificate or CA is missing.
        """
        if not self.has_certificate and not self.verifies_peers:
            return None
        if not (self.has_certificate and self.verifies_peers):
            raise ConfigError(
                "both ends show a certificate: give --tls-cert, --tls-key and --tls-ca, or --token-file"
            )
        pem = self._read()
        keys, chain, roots = _blocks(pem.key, "PRIVATE KEY"), _blocks(pem.cert), _blocks(pem.ca)
        if len(keys) != 1:
            raise ConfigError(
                f"{self.key} has no unencrypted key in PKCS#8; make one: openssl pkcs8 -topk8 -nodes -in {self.key}"
            )
        for path, found in ((self.cert, chain), (self.ca, roots)):
            if not found:
                raise ConfigError(f"{path} has no certificate in PEM")
        return keys[0], chain, roots

    def load(self, context: ssl.SSLContext) -> None:
        """Have a context of a client or a server use the files as they are now.

        Raises:
            ConfigError: A file cannot be used.
        """
        self._load(context, self._read())

    def fingerprints(self) -> list[str]:
        """Return the fingerprint of the CA of each token, the one that this process presents first.

        Raises:
            ConfigError: The token file cannot be used, or cryptography is not installed.
        """
        assert self.token_file is not None
        return [_certificates().Authority(token).fingerprint for token in read_tokens(self.token_file)]

    def pin(self) -> bytes | None:
        """Return the SHA-256 of a self-signed certificate; None of one that an authority has signed.

        Raises:
            ConfigError: The certificate cannot be read.
        """
        if not self.self_signed or self.cert is None:
            return None
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(read_public(self.cert).decode())).digest()

    def _kept(self, logger: logging.Logger) -> Kept[tuple[_Pem, ssl.SSLContext]]:
        paths = [path for path in (self.cert, self.key, self.ca, self.token_file) if path is not None]
        return Kept(paths, self._read_server, logger)

    def _read_server(self) -> tuple[_Pem, ssl.SSLContext]:
        if not self.has_certificate:
            raise ConfigError(
                "TLS of a server needs a certificate and its key: give --tls-cert and --tls-key"
            )
        if self.self_signed:
            self._make_missing()
        pem, context = self._read(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED if self.verifies_peers else ssl.CERT_NONE
        self._load(context, pem)
        return pem, context

    def _read(self) -> _Pem:
        if self.token_file is not None:
            return _Pem(*_certificates().mint(read_tokens(self.token_file)))
        key = None if self.key is None else read_secret(self.key)
        cert, ca = (None if path is None else read_public(path) for path in (self.cert, self.ca))
        return _Pem(key, cert, ca)

    def _load(self, context: ssl.SSLContext, pem: _Pem) -> None:
        """Have a context use what was read.

        Raises:
            ConfigError: It is no certificate with its key, or no CA.
        """
        if self.token_file is not None:
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            try:
                _load_from_memory(context, pem)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(f"cannot load the certificate of {self.token_file}: {error}") from None
            return
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            if self.cert is not None:
                # An encrypted key is refused; without a password OpenSSL would ask for one on the terminal.
                context.load_cert_chain(self.cert, self.key, password="")
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"{self.cert} and {self.key} are no certificate with its key: {error}"
            ) from None
        try:
            if self.ca is not None:
                context.load_verify_locations(self.ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"{self.ca} is no certificate of a CA: {error}") from None

    def _make_missing(self) -> None:
        """Make certificate and key if one of them is missing."""
        cert, key = self.cert, self.key
        assert cert is not None
        assert key is not None
        if cert.exists() and key.exists():
            return
        pem_key, pem_cert = _certificates().self_signed()
        try:
            write_file(key, pem_key)
            write_file(cert, pem_cert)
        except OSError as error:
            raise ConfigError(f"cannot write {cert} and {key}: {error.strerror}") from None


def jobs_of(credentials: Der | None) -> list[str]:
    """Return the start of the fingerprint of each token; empty if a CA is of PEM files, or without credentials."""
    found = [_JOB.search(root) for root in credentials[2]] if credentials else []
    return [one[1].decode() for one in found if one] if all(found) else []


@dataclass(frozen=True)
class _Pem:
    """Key, certificate with those that sign it, and the CAs of peers."""

    key: bytes | None = field(repr=False)
    cert: bytes | None
    ca: bytes | None


def _blocks(pem: bytes | None, label: str = "CERTIFICATE") -> list[bytes]:
    """Return what the blocks of PEM with a label hold; none if one of them is malformed."""
    blocks = re.findall(rf"-----BEGIN {label}-----([^-]*)-----END {label}-----".encode(), pem or b"")
    try:
        return [base64.b64decode(block) for block in blocks]
    except binascii.Error:
        return []


def _load_from_memory(context: ssl.SSLContext, pem: _Pem) -> None:
    """Load a key that is in no file; Python's ssl reads keys from files alone, so this one has no name and no disk."""
    assert pem.key is not None
    assert pem.cert is not None
    assert pem.ca is not None
    with open(_memory_file(), "wb") as file:
        file.write(pem.key + pem.cert)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    context.load_verify_locations(cadata=pem.ca.decode())


def _memory_file() -> int:
    if not hasattr(os, "memfd_create"):
        raise ConfigError(
            "a token file needs Linux here; give PEM files, or the invite of a parameter server"
        )
    try:
        # Where vm.memfd_noexec is 2, a file that could be executed is refused; before Linux 6.3 the flag is.
        return os.memfd_create("softs-fast", os.MFD_CLOEXEC | _NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create("softs-fast", os.MFD_CLOEXEC)


def _certificates() -> ModuleType:
    """Return the module that makes certificates.

    Raises:
        ConfigError: cryptography is not installed.
    """
    try:
        from . import certificates
    except ImportError as error:
        raise ConfigError(
            f"a certificate of its own needs cryptography: {error}; pip install cryptography, or give --tls-cert and "
            "--tls-key"
        ) from None
    return certificates
