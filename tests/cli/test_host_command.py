"""``softs-fast host``; tests/link kills it, and takes samples through it."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest
from shell import Command, Run


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        ([], "give an address to listen at, or those of other hosts to connect to"),
        (["--listen", "0.0.0.0"], "at 0.0.0.0:4700 is reachable from other machines without TLS; give both hosts"),
        (["--connect", "192.0.2.1:5"], "at 192.0.2.1:5 is reachable from other machines without TLS"),
        (["--listen", "127.0.0.1:x"], "expected HOST:PORT"),
        (["--connect", "softs://a,b/job"], "expected one host, got a:4700 and b:4700"),
        (["--listen", "softs://a,b/job"], "name one host, and repeat --connect"),
        (["--connect", "softs://a/job?token_file=x", "--token-file", "y"], "token file 'y' contradicts 'x' of the place"),
        (["--connect", "softs://a/job?token_file=x", "--tls-ca", "ca.pem"], "a token file makes the certificates"),
        (["--listen", "127.0.0.1", "--tls-ca", "ca.pem"], "both ends show a certificate"),
        (["--listen", "127.0.0.1", "--token-file", "missing"], "cannot read missing"),
    ],
)  # fmt: skip
def test_what_it_refuses(run: Run, ends: list[str], text: str) -> None:
    status, out, errors = run("host", *ends)
    assert (status, out) == (1, "")
    assert text in errors
    assert errors.startswith("softs-fast: ")
    assert errors.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_a_signal_comes(command: Command, short_path: Path, number: int) -> None:
    # Its broker and its peers may come later.
    ends = {"SOFTS_FAST_FRONTEND": f"ipc://{short_path}/f", "SOFTS_FAST_BACKEND": f"ipc://{short_path}/b"}
    process = command.start("host", "--listen", "127.0.0.1:0", "--connect", "localhost:1", **ends)
    assert process.stdout is not None
    said = process.stdout.readline()
    place, _, port = said.removesuffix(" and connects to localhost:1\n").rpartition(":")
    assert place == f"host link of ipc://{short_path}/f listens at 127.0.0.1"
    with socket.create_connection(("127.0.0.1", int(port))):
        pass
    status, out, _ = command.end(process, number)
    assert (status, out) == (0, "")


def test_a_port_that_is_in_use(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        status, out, errors = run("host", "--listen", f"127.0.0.1:{port}")
    assert (status, out) == (1, "")
    assert f"127.0.0.1:{port} is in use" in errors
