"""TLS of a server: PEM files, or a certificate of its own that the invite pins."""

from __future__ import annotations

import hashlib
import os
import ssl
import stat
from datetime import UTC, datetime, timedelta

from ....durable import write_file
from ....errors import ConfigError
from ..options import TlsFiles

__all__ = ["certificate_pin", "server_context"]

_DAYS = 3650


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Return a context with a certificate; a self-signed one is written if it is not there.

    Raises:
        ConfigError: a file cannot be used, others can read the key, or cryptography is not installed.
    """
    if files.self_signed and not (files.cert.exists() and files.key.exists()):
        _make(files)
    try:
        mode = files.key.stat()
    except OSError as error:
        raise ConfigError(f"cannot read {files.key}: {error.strerror}") from None
    if mode.st_uid not in (os.getuid(), 0) or mode.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise ConfigError(
            f"{files.key} is a secret that other users can read or replace; chmod 600 {files.key}"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(files.cert, files.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{files.cert} and {files.key} are no certificate with its key: {error}") from None
    context.set_alpn_protocols(["http/1.1"])
    return context


def certificate_pin(files: TlsFiles) -> bytes | None:
    """Return the SHA-256 of a self-signed certificate; None of one that an authority has signed."""
    if not files.self_signed:
        return None
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(files.cert.read_text())).digest()


def _make(files: TlsFiles) -> None:
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
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "softs-fast paramserver")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .issuer_name(name)
        .subject_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Clocks of workers may be wrong by much.
        .not_valid_before(now - timedelta(days=365))
        .not_valid_after(now + timedelta(days=_DAYS))
        .sign(key, hashes.SHA256())
    )
    pem_key = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    try:
        write_file(files.key, pem_key)
        write_file(files.cert, pem)
    except OSError as error:
        raise ConfigError(f"cannot write {files.cert} and {files.key}: {error.strerror}") from None
