"""What a client is told of a server with Python's TLS, which sends alerts; that of gRPC is in tests/coordination/session."""

from __future__ import annotations

import re
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography", reason="makes certificates")
from certificates import Authority

from softs_fast.trust import TlsFiles, tls_problem


@contextmanager
def server(cert: tuple[str, str] | None, ca: Path | None = None, version: Any = None) -> Iterator[int]:
    """A server for one connection; it speaks first. Without a certificate it answers in plain text."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if cert is not None:
        context.load_cert_chain(*cert)
    if ca is not None:
        context.load_verify_locations(ca)
        context.verify_mode = ssl.CERT_REQUIRED
    if version is not None:
        context.maximum_version = version

    def serve() -> None:
        with listener.accept()[0] as peer:
            if cert is None:
                peer.recv(1 << 16)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                return
            try:
                with context.wrap_socket(peer, server_side=True) as tls:
                    tls.sendall(b"\0")
                    tls.recv(1)
            except OSError:
                # The client has read the alert, or has ended the connection.
                return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def test_servers_that_verify_clients(tmp_path: Path) -> None:
    ours, foreign = Authority(tmp_path), Authority(tmp_path, "foreign")
    cert = ours.issue("server", "server")
    nothing = TlsFiles(ca=ours.file)
    good = TlsFiles(*map(Path, ours.issue("good", "w0")), ca=ours.file)
    bad = TlsFiles(*map(Path, foreign.issue("bad", "w0")), ca=ours.file)
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        for client, text in (
            (
                nothing,
                "it asks for a certificate, and this process has none .*; give --token-file, or .*",
            ),
            (bad, "it does not accept .*bad.pem .*unknown ca.*; give one that .*"),
            (good, "None"),
        ):
            with server(cert, ours.file, version) as port:
                problem = tls_problem("127.0.0.1", port, client)
            assert re.fullmatch(text, str(problem)), problem


def test_a_server_without_tls(tmp_path: Path) -> None:
    ca = Authority(tmp_path).file
    with server(None) as port:
        assert "it speaks no TLS" in str(tls_problem("127.0.0.1", port, TlsFiles(ca=ca)))
    with server(None) as port:
        assert tls_problem("127.0.0.1", port, TlsFiles()) is None


def test_what_cannot_be_determined_is_no_problem(tmp_path: Path) -> None:
    ca = Authority(tmp_path).file
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert tls_problem("127.0.0.1", port, TlsFiles(ca=ca)) is None


def test_a_file_without_certificates_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("nothing")
    assert "empty.pem is no certificate of a CA" in str(
        tls_problem("127.0.0.1", 1, TlsFiles(ca=tmp_path / "empty.pem"))
    )
