"""Files of certificates of servers of gRPC and of Python's ssl: made, replaced, broken."""

from __future__ import annotations

import logging
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="needs the extra grpc")
pytest.importorskip("cryptography", reason="makes certificates")
import grpc
from certificates import Authority
from waiting import WATCHDOG_S

from softs_fast.errors import ConfigError
from softs_fast.trust import Address, TlsFiles

LOGGER = logging.getLogger(__name__)
#: What a new connection with a name of the server, or without, is shown: a certificate in DER, and the protocol.
Shown = Callable[..., tuple[bytes | None, str | None]]


def client() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


@pytest.fixture(params=["ssl", "grpc"])
def serve(request: pytest.FixtureRequest) -> Iterator[Callable[[TlsFiles], Shown]]:
    """Servers of both libraries."""
    with ExitStack() as stack:

        def by_ssl(files: TlsFiles) -> Shown:
            context = files.ssl_server(["h2"], LOGGER)

            def shown(name: str | None = None) -> tuple[bytes | None, str | None]:
                there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
                own = client().wrap_bio(back, there, server_hostname=name)
                peer = context.wrap_bio(there, back, server_side=True)
                for end in (own, peer, own, peer):
                    with suppress(ssl.SSLWantReadError):
                        end.do_handshake()
                return own.getpeercert(binary_form=True), own.selected_alpn_protocol()

            return shown

        def by_grpc(files: TlsFiles) -> Shown:
            credentials = files.grpc_server(LOGGER)
            server = grpc.server(stack.enter_context(ThreadPoolExecutor(1)))
            port = server.add_secure_port("127.0.0.1:0", credentials)
            server.start()
            stack.callback(lambda: server.stop(None).wait())

            def shown(name: str | None = None) -> tuple[bytes | None, str | None]:
                with (
                    socket.create_connection(("127.0.0.1", port), WATCHDOG_S) as raw,
                    client().wrap_socket(raw, server_hostname=name) as own,
                ):
                    return own.getpeercert(binary_form=True), own.selected_alpn_protocol()

            return shown

        yield by_ssl if request.param == "ssl" else by_grpc


def der(path: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(path.read_text())


def issued(authority: Authority, file: str) -> TlsFiles:
    return TlsFiles(*map(Path, authority.issue(file, "server")))


def test_files_are_read_again_and_what_is_invalid_leaves_the_old_in_force(
    serve: Callable[[TlsFiles], Shown], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    files = issued(authority, "server")
    assert files.cert is not None
    assert files.key is not None
    shown = serve(files)
    assert shown() == (der(files.cert), "h2")
    authority.issue("server", "server")
    fresh, secret = der(files.cert), files.key.read_bytes()
    assert shown() == shown("any.name") == (fresh, "h2")
    assert caplog.text.count("stays in force") == 0

    def broken(path: Path, content: bytes, mode: int = 0o600) -> None:
        new = path.with_suffix(".new")
        new.write_bytes(content)
        new.chmod(mode)
        os.replace(new, path)
        assert shown() == (fresh, "h2")

    broken(files.cert, b"nothing")
    # A certificate before its key has come.
    broken(files.cert, Path(authority.issue("other", "server")[0]).read_bytes())
    broken(files.key, secret, 0o604)
    files.key.unlink()
    assert shown() == (fresh, "h2")
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [text in line for text, line in zip(
        ("no certificate with its key", "no certificate with its key", "mode 0600", "No such file"), told, strict=True
    )] == [True] * 4  # fmt: skip
    authority.issue("server", "server")
    assert shown()[0] == der(files.cert) != fresh
    assert "PRIVATE KEY" not in caplog.text
    assert secret.decode()[40:60] not in caplog.text + repr(files)


def test_a_server_reads_no_key_that_others_can_read(
    serve: Callable[[TlsFiles], Shown], tmp_path: Path
) -> None:
    files = issued(Authority(tmp_path), "server")
    assert files.key is not None
    files.key.chmod(0o644)
    with pytest.raises(ConfigError, match=f"{files.key} must be a file of this user with mode 0600"):
        serve(files)
    files.key.unlink()
    with pytest.raises(ConfigError, match=f"cannot read {files.key}: No such file"):
        serve(files)


def test_a_client_reads_no_key_that_others_can_read(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = map(Path, authority.issue("client", "w0"))
    there = Address.parse("127.0.0.1:1", "coordinator")
    TlsFiles(cert, key, authority.file).grpc_channel(there, []).close()
    TlsFiles().grpc_channel(there, []).close()
    key.chmod(0o620)
    with pytest.raises(ConfigError, match="mode 0600"):
        TlsFiles(cert, key, authority.file).grpc_channel(there, [])
    with pytest.raises(ConfigError, match=r"cannot read .*none"):
        TlsFiles(ca=tmp_path / "none").grpc_channel(there, [])


def test_an_encrypted_key_is_refused_without_a_question(tmp_path: Path) -> None:
    files = issued(Authority(tmp_path), "server")
    assert files.key is not None
    from cryptography.hazmat.primitives import serialization as form

    key: Any = form.load_pem_private_key(files.key.read_bytes(), None)
    locked = key.private_bytes(
        form.Encoding.PEM, form.PrivateFormat.PKCS8, form.BestAvailableEncryption(b"word")
    )
    files.key.write_bytes(locked)
    with pytest.raises(ConfigError, match="no certificate with its key"):
        files.ssl_server([])


def test_a_certificate_of_its_own_is_made_once(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path / "c.pem", tmp_path / "k.pem", self_signed=True)
    files.ssl_server(["http/1.1"])
    pin = files.pin()
    assert pin is not None
    assert len(pin) == 32
    files.ssl_server(["http/1.1"])
    assert files.pin() == pin
    assert files.key is not None
    assert files.key.stat().st_mode & 0o777 == 0o600
    assert TlsFiles(files.cert, files.key).pin() is None


@pytest.mark.parametrize("names", [("cert",), ("key",), ("key", "ca")])
def test_files_that_belong_together(names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="a certificate needs its key: give both"):
        TlsFiles(**dict.fromkeys(names, Path("x")))
    with pytest.raises(ConfigError, match="needs a certificate and its key"):
        TlsFiles().ssl_server([])
