"""A job's token makes certificates: their keys, the peers that accept them, and their end when it is replaced."""

from __future__ import annotations

import errno
import hashlib
import hmac
import logging
import os
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="needs the extra grpc")
pytest.importorskip("cryptography", reason="makes certificates")
import grpc
from certificates import Authority as OtherAuthority
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from token_files import token_file
from waiting import WATCHDOG_S

from softs_fast.errors import ConfigError
from softs_fast.trust import Address, TlsFiles, tls_problem
from softs_fast.trust.certificates import SERVER_NAME, Authority, authority_key, mint

TOKEN = "0123456789abcdef0123456789abcdef"
METHOD = "/test/Echo"
#: Lines of two files, as letters, and whether ends with them accept each other.
PAIRS = [
    *((one, one, True) for one in ("a", "ba")),
    # The file has a new token on one host, and not yet on the other.
    ("ba", "a", True),
    ("a", "ba", True),
    # One host has ended the rotation, the other has not.
    ("ba", "b", True),
    ("b", "ba", True),
    ("a", "b", False),
    ("cb", "a", False),
    ("cb", "ba", True),
]


def test_the_vector_of_the_page() -> None:
    # RFC 5869, by hand.
    extracted = hmac.new(b"softs-fast", TOKEN.encode(), hashlib.sha256).digest()
    info = b"job token v1: P-256 key of the CA"
    one = hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()
    two = hmac.new(extracted, one + info + b"\x02", hashlib.sha256).digest()
    number = int.from_bytes(one + two[:16], "big")
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    key = number % (order - 1) + 1
    said = [f"{one.hex()}{two[:16].hex()}", f"{key:064x}", Authority(TOKEN).fingerprint]
    assert authority_key(TOKEN) == key
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    assert [text in page for text in (TOKEN, *said)] == [True] * 4
    assert said[1:] == [
        "daca65a616c1fbbac26c60d9bce270de4cb376f02a300cbec161920869f6ac67",
        "3ac6ed6a2dc761951adaea4de18777c26f9014da9d297d69ef424760257fb206",
    ]


def test_a_certificate_names_the_job_and_no_host_and_fits_clocks_that_are_wrong() -> None:
    _, chain, roots = mint([TOKEN, "b" * 32])
    leaf, cross = x509.load_pem_x509_certificates(chain)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [SERVER_NAME]
    job = Authority(TOKEN).fingerprint[:32]
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [f"softs://{job}/holder"]
    # There is no other name. The letters of the PEM tell nothing: a short name of a host may be among them by chance.
    assert (len(names), leaf.subject.rfc4514_string()) == (2, "CN=softs-fast")
    now, day = datetime.now(UTC), timedelta(days=1)
    for one in (leaf, cross, *x509.load_pem_x509_certificates(roots)):
        assert one.not_valid_before_utc < now - 30 * day
        assert one.not_valid_after_utc > now + 1000 * day
    key = cross.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert (
        key.public_numbers()
        == ec.derive_private_key(authority_key(TOKEN), ec.SECP256R1()).public_key().public_numbers()
    )
    # Each process has a key of its own, of one CA.
    assert leaf.public_key() != x509.load_pem_x509_certificate(mint([TOKEN])[1]).public_key()
    assert mint([TOKEN])[2] != roots


class Echo(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers with the names in the certificate of the caller."""

    def service(self, details: Any) -> Any:
        def answer(request: bytes, context: Any) -> bytes:
            return b" ".join(context.auth_context().get("peer_uri", []))

        return grpc.unary_unary_rpc_method_handler(answer)


@pytest.fixture
def by_grpc() -> Iterator[Callable[[TlsFiles], int]]:
    """Servers of gRPC with files; the port of each."""
    with ExitStack() as stack:

        def serve(files: TlsFiles) -> int:
            server = grpc.server(stack.enter_context(ThreadPoolExecutor(2)), handlers=[Echo()])
            credentials = files.grpc_server()
            port = (
                server.add_insecure_port("127.0.0.1:0")
                if credentials is None
                else server.add_secure_port("127.0.0.1:0", credentials)
            )
            server.start()
            stack.callback(lambda: server.stop(None).wait())
            return int(port)

        yield serve


def asked(port: int, files: TlsFiles) -> str:
    """What a client of gRPC is answered, or the name of the error."""
    there = Address.parse(f"127.0.0.1:{port}", "server")
    with files.grpc_channel(there, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            answer: bytes = channel.unary_unary(METHOD)(b"", timeout=WATCHDOG_S)
        except grpc.RpcError as error:
            return str(error.code().name)
    return answer.decode()


@pytest.mark.parametrize(("theirs", "mine", "fits"), PAIRS)
def test_files_that_share_a_token_meet_over_grpc(
    by_grpc: Callable[[TlsFiles], int], tmp_path: Path, theirs: str, mine: str, fits: bool
) -> None:
    own = TlsFiles(token_file=token_file(tmp_path / "mine", *mine))
    port = by_grpc(TlsFiles(token_file=token_file(tmp_path / "theirs", *theirs)))
    job = Authority(mine[0] * 32).fingerprint[:32]
    assert asked(port, own) == (f"softs://{job}/holder" if fits else "UNAVAILABLE")
    problem = tls_problem("127.0.0.1", port, own)
    wrong = f"it does not have the token of {tmp_path / 'mine'}; give both ends the same token file"
    assert problem == (None if fits else wrong)


@contextmanager
def ssl_pair(server: TlsFiles, client: TlsFiles) -> Iterator[tuple[ssl.SSLObject, ssl.SSLObject]]:
    """Both ends of a connection of Python's ssl, after the handshake."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load(context)
    own = context.wrap_bio(back, there, server_hostname=client.server_name("10.1.2.3"))
    peer = server.ssl_server([]).wrap_bio(there, back, server_side=True)
    for end in (own, peer, own, peer):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    yield own, peer


@pytest.mark.parametrize(("theirs", "mine", "fits"), PAIRS)
def test_files_that_share_a_token_meet_over_python_s_ssl(
    tmp_path: Path, theirs: str, mine: str, fits: bool
) -> None:
    files = [TlsFiles(token_file=token_file(tmp_path / one, *one)) for one in (theirs, mine)]
    if not fits:
        with pytest.raises(ssl.SSLCertVerificationError), ssl_pair(*files):
            pass
        return
    with ssl_pair(*files) as (own, peer):
        assert own.version() == peer.version() == "TLSv1.3"
        assert peer.getpeercert(binary_form=True) is not None


def test_python_s_ssl_takes_no_tls_before_1_3(tmp_path: Path) -> None:
    files = TlsFiles(token_file=token_file(tmp_path / "token", "a"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    files.load(context)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    own = context.wrap_bio(back, there, server_hostname=SERVER_NAME)
    with pytest.raises(ssl.SSLWantReadError):
        own.do_handshake()
    with pytest.raises(ssl.SSLError, match="UNSUPPORTED_PROTOCOL"):
        files.ssl_server([]).wrap_bio(there, back, server_side=True).do_handshake()


def without_verification(port: int, files: TlsFiles | None) -> bytes:
    """What a server sends first to a client that believes any server, and shows the certificate of some files or none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if files is not None:
        files.load(context)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with socket.create_connection(("127.0.0.1", port), WATCHDOG_S) as raw:
        try:
            with context.wrap_socket(raw) as tls:
                return tls.recv(1)
        except OSError:
            return b""


def test_a_server_refuses_clients_without_its_token(
    by_grpc: Callable[[TlsFiles], int], tmp_path: Path
) -> None:
    port = by_grpc(TlsFiles(token_file=token_file(tmp_path / "token", "a")))
    site = OtherAuthority(tmp_path)
    foreign = TlsFiles(*map(Path, site.issue("w0", "w0", uri="softs://0/holder")))
    other = TlsFiles(token_file=token_file(tmp_path / "other", "b"))
    same = TlsFiles(token_file=token_file(tmp_path / "same", "a"))
    assert [without_verification(port, one) for one in (None, foreign, other)] == [b""] * 3
    assert without_verification(port, same) != b""


def test_ends_of_which_one_has_no_token_are_told_the_remedy(
    by_grpc: Callable[[TlsFiles], int], tmp_path: Path
) -> None:
    own, site = TlsFiles(token_file=token_file(tmp_path / "token", "a")), OtherAuthority(tmp_path)
    certified = TlsFiles(*map(Path, site.issue("server", "server")), ca=site.file)
    late = TlsFiles(*map(Path, site.issue("late", "server", is_expired=True)), ca=site.file)
    for server, client, text in (
        (own, TlsFiles(), "it speaks TLS, and this process does not; give --token-file or --tls-ca"),
        (TlsFiles(), own, "it speaks no TLS; connect without TLS, or start it with a token file"),
        (
            own,
            certified,
            r"its certificate is not accepted: .*; give the CA .*, or the token file of its job",
        ),
        (
            certified,
            own,
            f"it does not have the token of {own.token_file}; give both ends the same token file",
        ),
        (late, certified, r"its certificate is not accepted: certificate has expired; renew it"),
    ):
        port = by_grpc(server)
        assert asked(port, client) == "UNAVAILABLE"
        assert re.match(text, str(tls_problem("127.0.0.1", port, client)))


def test_a_token_is_replaced_while_a_server_runs(
    by_grpc: Callable[[TlsFiles], int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = token_file(tmp_path / "theirs", "a")
    with caplog.at_level(logging.INFO):
        port = by_grpc(TlsFiles(token_file=path))
        old, new = (TlsFiles(token_file=token_file(tmp_path / one, one)) for one in "ab")

        def accepted() -> list[bool]:
            return [asked(port, one) != "UNAVAILABLE" for one in (old, new)]

        assert accepted() == [True, False]
        token_file(path, "b", "a")
        assert accepted() == [True, True]
        path.write_text("neither\n")
        assert accepted() == [True, True]
        token_file(path, "b")
        assert accepted() == [False, True]
    assert f"{path} stays in force as it was: {path}, line 1: invalid token" in caplog.text
    assert not any(secret in caplog.text for secret in ("a" * 32, "b" * 32, "PRIVATE"))


@pytest.mark.parametrize("make", ["mode", "link", "owner", "empty"])
def test_files_that_others_could_have_written_or_read_are_refused(tmp_path: Path, make: str) -> None:
    path = token_file(tmp_path / "token", "a")
    text = "must be a file of this user with mode 0600"
    if make == "mode":
        path.chmod(0o644)
    elif make == "link":
        # As a mounted secret: the file at its end counts.
        path.chmod(0o604)
        (tmp_path / "link").symlink_to(path)
        path = tmp_path / "link"
    elif make == "owner":
        if os.getuid() != 0:
            pytest.skip("only root can give a file away")
        os.chown(path, 12345, 12345)
    else:
        path.write_text("# nothing\n")
        text = "has no token; make one: softs-fast keys new FILE"
    for use in (
        lambda files: files.grpc_server(),
        lambda files: files.load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)),
    ):
        with pytest.raises(ConfigError, match=f"{path}.*{text}"):
            use(TlsFiles(token_file=path))


def test_memory_that_the_system_refuses_is_an_error_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    path = token_file(tmp_path / "token", "a")
    monkeypatch.setattr(os, "memfd_create", refused)
    with pytest.raises(ConfigError, match=f"cannot load the certificate of {path}: .*Permission denied"):
        TlsFiles(token_file=path).load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    # As on a Mac, where a worker of a parameter server may run.
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(ConfigError, match="a token file needs Linux here; give PEM files, or the invite"):
        TlsFiles(token_file=path).ssl_client()


def test_pem_files_beside_a_token_file_are_refused() -> None:
    for more in ({"ca": Path("x")}, {"cert": Path("x"), "key": Path("x")}):
        with pytest.raises(ConfigError, match="a token file makes the certificates: give --token-file, or"):
            TlsFiles(token_file=Path("t"), **more)


HOLDER = """
import sys, threading
from pathlib import Path
from softs_fast.trust import TlsFiles
files = TlsFiles(token_file=Path(sys.argv[1]))
context = files.ssl_server([])
kept = files._kept(__import__("logging").getLogger())
print(repr(files), vars(files), kept.now(), flush=True)
sys.stdin.readline()
"""


def test_no_key_is_in_a_file_an_argument_the_environment_or_a_repr(tmp_path: Path) -> None:
    path = token_file(tmp_path / "token", "a")
    before = set(tmp_path.iterdir())
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as holder:  # fmt: skip
        assert holder.stdout is not None
        said = holder.stdout.readline()
        process = Path(f"/proc/{holder.pid}")
        shown = said.encode() + b"".join((process / one).read_bytes() for one in ("cmdline", "environ"))
        opened = [os.readlink(one) for one in (process / "fd").iterdir()]
        holder.communicate("\n")
    assert "TlsFiles" in said
    assert not any(secret in shown for secret in (b"a" * 32, b"PRIVATE KEY"))
    # The memory in which OpenSSL has read the key is closed.
    assert not any("memfd:softs-fast" in one for one in opened)
    assert set(tmp_path.iterdir()) == before
