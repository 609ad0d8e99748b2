"""Certificates that a process makes for itself: those of a job's token, and one that names its own key.

A token is a certificate authority (CA): all processes that have it derive the same key from it, so each can sign a
certificate for itself, and knows those of the others. docs/security.md has the derivation byte by byte.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["SERVER_NAME", "Authority", "authority_key", "mint", "self_signed"]

#: Name of each server of a job in its certificate: the token says of which job it is, and no name says which host.
SERVER_NAME = "softs-fast"
_SALT, _INFO = b"softs-fast", b"job token v1: P-256 key of the CA"
#: Order of the group of P-256.
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
#: 128 bits more than the order has, so that a remainder of it is as good as random.
_N_BYTES = 48
#: No clock is wrong by so much. A CA has no time of its own: its key has none.
_BEFORE, _AFTER = timedelta(days=365), timedelta(days=3650)
_CA_SINCE, _CA_UNTIL = datetime(2000, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
_USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


def authority_key(token: str) -> int:
    """Return the private key of a token's CA, a number from 1 to the order of P-256 less 1.

    HKDF-SHA256 (RFC 5869) of the token's characters in ASCII gives 48 bytes, a number with the first byte as the highest.
    The key is its remainder of the order less 1, and 1 (FIPS 186-5, A.2.1).
    """
    derived = HKDF(hashes.SHA256(), _N_BYTES, _SALT, _INFO).derive(token.encode("ascii"))
    return int.from_bytes(derived, "big") % (_ORDER - 1) + 1


class Authority:
    """The CA of a token.

    Args:
        token: Token of the job.

    Attributes:
        fingerprint: SHA-256 of the CA's public key (SubjectPublicKeyInfo in DER), 64 hexadecimal digits.
    """

    def __init__(self, token: str) -> None:
        self._key = ec.derive_private_key(authority_key(token), ec.SECP256R1())
        self._public = self._key.public_key()
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        self.fingerprint = hashlib.sha256(
            self._public.public_bytes(serialization.Encoding.DER, form)
        ).hexdigest()
        # Two CAs of one file have two names, so that no signature is checked with the key of the other one.
        self._name = _name(f"softs-fast job {self.fingerprint[:32]}")

    def certify(self, other: Authority) -> bytes:
        """Return the certificate in PEM by which a peer that trusts this CA trusts another one too, or this one itself."""
        builder = _builder(other._name, other._public, _CA_SINCE, _CA_UNTIL)
        builder = builder.add_extension(x509.BasicConstraints(True, None), critical=True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(other._public), False)
        return self._signed(builder, "key_cert_sign")

    def issue(self, public: ec.EllipticCurvePublicKey) -> bytes:
        """Return the certificate in PEM of a process, as a server and as a client.

        It names neither host nor process: a server shows it to all that connect, and each holder of the token could
        write any name.
        """
        now = datetime.now(UTC)
        names = [
            x509.DNSName(SERVER_NAME),
            x509.UniformResourceIdentifier(f"softs://{self.fingerprint[:32]}/holder"),
        ]
        usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = _builder(_name("softs-fast"), public, now - _BEFORE, now + _AFTER)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), False)
        builder = builder.add_extension(x509.BasicConstraints(False, None), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usage), False)
        return self._signed(builder, "digital_signature")

    def _signed(self, builder: x509.CertificateBuilder, usage: str) -> bytes:
        usages = x509.KeyUsage(**{name: name == usage for name in _USAGES})
        builder = builder.issuer_name(self._name).add_extension(usages, critical=True)
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._public)
        return _pem(builder.add_extension(signer, False).sign(self._key, hashes.SHA256()))


def mint(tokens: Sequence[str]) -> tuple[bytes, bytes, bytes]:
    """Return a new key, its certificates and the CAs of peers, in PEM.

    The CA of the first token signs. Each other CA certifies that one, so peers accept the certificate that have any of
    the tokens: a token is replaced on one host after the other.

    Args:
        tokens: Tokens of the job, the one that this process presents first.
    """
    authorities = [Authority(token) for token in tokens]
    first = authorities[0]
    key = ec.generate_private_key(ec.SECP256R1())
    chain = [first.issue(key.public_key()), *(other.certify(first) for other in authorities[1:])]
    return _pem_key(key), b"".join(chain), b"".join(one.certify(one) for one in authorities)


def self_signed() -> tuple[bytes, bytes]:
    """Return a new key and its certificate in PEM, for clients that know the certificate itself."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = _name("softs-fast")
    builder = _builder(name, key.public_key(), now - _BEFORE, now + _AFTER).issuer_name(name)
    return _pem_key(key), _pem(builder.sign(key, hashes.SHA256()))


def _builder(
    subject: x509.Name, public: ec.EllipticCurvePublicKey, since: datetime, until: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).public_key(public)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(since).not_valid_after(until)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
