"""Certificates that are made on the spot."""

from __future__ import annotations

import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """A CA, with its files in a folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        now = datetime.now(UTC)
        builder = _builder(
            self._name, self._name, self._key, now - timedelta(days=1), now + timedelta(days=2)
        )
        self._certificate = builder.add_extension(x509.BasicConstraints(True, None), critical=True).sign(
            self._key, hashes.SHA256()
        )
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        file: str,
        common_name: str,
        uri: str | None = None,
        is_expired: bool = False,
        begins: timedelta = timedelta(days=-1),
        address: str = "127.0.0.1",
    ) -> tuple[str, str]:
        """Write a certificate for an address, or a name of DNS, and its key; their paths. Files of that name are replaced at once."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        until = now - timedelta(hours=1) if is_expired else now + timedelta(days=1)
        try:
            names: list[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address(address))]
        except ValueError:
            names = [x509.DNSName(address)]
        if uri is not None:
            names.append(x509.UniformResourceIdentifier(uri))
        builder = _builder(self._name, _name(common_name), key, now + begins, until)
        certificate = builder.add_extension(x509.SubjectAlternativeName(names), critical=False).sign(
            self._key, hashes.SHA256()
        )
        cert_file, key_file = self._folder / f"{file}.pem", self._folder / f"{file}.key"
        _replace(cert_file, certificate.public_bytes(serialization.Encoding.PEM))
        _replace(
            key_file,
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )
        return str(cert_file), str(key_file)


def _builder(
    issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePrivateKey, since: datetime, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(until)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _replace(path: Path, data: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(data)
    new.chmod(0o600)
    os.replace(new, path)
