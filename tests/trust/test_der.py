"""Key, certificates and CAs of an end that both connects and is connected to, in DER."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="makes certificates")
from certificates import Authority
from cryptography import x509
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec
from token_files import token_file

from softs_fast.errors import ConfigError
from softs_fast.trust import TlsFiles, jobs_of

PEM, PLAIN = form.Encoding.PEM, form.NoEncryption()


def issued(folder: Path) -> tuple[Path, Path, Path]:
    """Files of a certificate, its key, and its CA."""
    authority = Authority(folder)
    cert, key = map(Path, authority.issue("host", "host"))
    return cert, key, authority.file


def whole(files: TlsFiles) -> tuple[x509.Certificate, list[x509.Certificate], list[x509.Certificate]]:
    """What the files hold, read again: own certificate, which fits the key, the others, and the CAs."""
    found = files.der()
    assert found is not None
    key = form.load_der_private_key(found[0], None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    chain, roots = (list(map(x509.load_der_x509_certificate, ders)) for ders in found[1:])
    assert chain[0].public_key() == key.public_key()
    return chain[0], chain[1:], roots


def test_pem_files(tmp_path: Path) -> None:
    cert, key, ca = issued(tmp_path)
    other = Authority(tmp_path, "other").file
    # As openssl writes it: text before a block, and several blocks in a file.
    cert.write_bytes(b"subject=CN = host\n" + cert.read_bytes() + other.read_bytes())
    ca.write_bytes(ca.read_bytes() + b"\n" + other.read_bytes())
    own, above, roots = whole(TlsFiles(cert, key, ca))
    own.verify_directly_issued_by(roots[0])
    assert above == roots[1:] == [x509.load_pem_x509_certificate(other.read_bytes())]


def test_a_token_file(tmp_path: Path) -> None:
    path = token_file(tmp_path / "token", "b", "a")
    own, above, roots = whole(TlsFiles(token_file=path))
    own.verify_directly_issued_by(roots[0])
    assert len(roots) == 2
    (crossed,) = above
    crossed.verify_directly_issued_by(roots[1])
    assert whole(TlsFiles(token_file=path))[0].public_key() != own.public_key(), "a new key each time"


def test_jobs_are_told_from_the_certificates_of_a_token_file_alone(tmp_path: Path) -> None:
    files = TlsFiles(token_file=token_file(tmp_path / "token", "b", "a"))
    assert jobs_of(files.der()) == [whole[:32] for whole in files.fingerprints()]
    cert, key, ca = issued(tmp_path)
    pem = TlsFiles(cert, key, ca).der()
    assert pem is not None
    assert jobs_of(pem) == []


def test_without_files_there_is_nothing() -> None:
    assert TlsFiles().der() is None
    assert jobs_of(None) == []


def test_both_ends_show_a_certificate(tmp_path: Path) -> None:
    cert, key, ca = issued(tmp_path)
    for files in (TlsFiles(ca=ca), TlsFiles(cert, key)):
        with pytest.raises(ConfigError, match="give --tls-cert, --tls-key and --tls-ca, or --token-file"):
            files.der()


@pytest.mark.parametrize("kind", ["encrypted", "not PKCS#8", "cut", "none"])
def test_a_key_that_cannot_be_used_names_the_remedy_and_shows_nothing(tmp_path: Path, kind: str) -> None:
    cert, path, ca = issued(tmp_path)
    key = form.load_pem_private_key(path.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    pkcs8 = form.PrivateFormat.PKCS8
    path.write_bytes(
        {
            "encrypted": key.private_bytes(PEM, pkcs8, form.BestAvailableEncryption(b"word")),
            "not PKCS#8": key.private_bytes(PEM, form.PrivateFormat.TraditionalOpenSSL, PLAIN),
            "cut": key.private_bytes(PEM, pkcs8, PLAIN).replace(b"A", b"", 1),
            "none": b"",
        }[kind]
    )
    with pytest.raises(ConfigError) as raised:
        TlsFiles(cert, path, ca).der()
    assert str(raised.value).endswith(f"openssl pkcs8 -topk8 -nodes -in {path}")
    assert not any(line.decode() in str(raised.value) for line in path.read_bytes().splitlines())


@pytest.mark.parametrize("name", ["cert", "ca"])
def test_a_file_without_a_certificate_is_named(tmp_path: Path, name: str) -> None:
    cert, key, ca = issued(tmp_path)
    broken = {"cert": cert, "ca": ca}[name]
    broken.write_text("-----BEGIN CERTIFICATE-----\nA\n-----END CERTIFICATE-----\n")
    with pytest.raises(ConfigError, match=f"{broken} has no certificate in PEM"):
        TlsFiles(cert, key, ca).der()
