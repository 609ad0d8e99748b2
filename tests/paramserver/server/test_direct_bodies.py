"""Bodies that do not pass through h11: where they end, the next request begins."""

from __future__ import annotations

import socket
import threading
from typing import Any
from urllib.parse import urlsplit

import pytest
from raw_client import RawClient, job_of, large_model

from softs_fast.paramserver.server.pushes import Pushes
from softs_fast.paramserver.server.server import Server
from softs_fast.paramserver.wire import answers
from softs_fast.paramserver.wire.frame import Frame
from softs_fast.paramserver.wire.messages import Counted, UploadState
from softs_fast.paramserver.wire.records import decode

JOB = job_of(large_model)


class Peer:
    """One connection, of which a test chooses each byte."""

    def __init__(self, server: Server) -> None:
        parts = urlsplit(server.invite.url)
        self.socket = socket.create_connection((parts.hostname, parts.port), timeout=45)
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.socket.close()

    def answer(self, method: str) -> tuple[int, dict[str, str], bytes]:
        """Read one answer, and no byte of the next one."""

        line, *lines = self._head().decode().split("\r\n")
        status = int(line.split()[1])
        headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in lines)}
        n = 0 if method == "HEAD" else int(headers.get("content-length", 0))
        return status, headers, self._file.read(n)

    def _head(self) -> bytes:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = self._file.readline()
            assert line, f"the server has closed the connection after {head!r}"
            head += line
        return head


def part(client: RawClient, frame: Frame, offset: int, n: int, **more: str) -> tuple[bytes, bytes]:
    """Head and body of a part."""
    target = f"{answers.PUSH}/1.0"
    headers, _ = client.signed("PUT", target, frame.header.encode(), offset)
    lines = [f"PUT {target} HTTP/1.1", "Host: x", f"Content-Length: {n}"]
    lines += [f"{name}: {value}" for name, value in (headers | more).items()]
    return "\r\n".join([*lines, "", ""]).encode(), bytes(frame.payload[offset : offset + n])


def question(client: RawClient) -> bytes:
    """A request for what the server has of an upload."""
    headers, _ = client.signed("HEAD", f"{answers.PUSH}/1.0")
    lines = [f"HEAD {answers.PUSH}/1.0 HTTP/1.1", "Host: x"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


@pytest.mark.parametrize("cut", [0, 1, 5000])
def test_a_request_right_behind_a_body_is_the_next_one(serve, enter, cut: int) -> None:
    """The body ends in the middle of what arrives at once, whatever came with the head."""
    server = serve(JOB)
    client = enter(server, JOB)
    frame = client.frame()
    client.push(frame, whole=False)
    head, body = part(client, frame, 0, 70_000)
    with Peer(server) as peer:
        peer.socket.sendall(head + body[:cut])
        while client.ask("HEAD", f"{answers.PUSH}/1.0").headers["upload-offset"] != str(cut):
            pass
        peer.socket.sendall(body[cut:] + question(client))
        status, _, data = peer.answer("PUT")
        assert (status, decode(UploadState, data).next_offset) == (202, 70_000)
        status, headers, _ = peer.answer("HEAD")
        assert (status, headers["upload-offset"]) == (200, "70000")
        peer.socket.sendall(b"".join(part(client, frame, 70_000, len(frame.payload) - 70_000)))
        status, _, data = peer.answer("PUT")
        assert (status, decode(Counted, data)) == (200, Counted(1, 1))


def test_a_part_that_is_refused_leaves_the_connection_as_it_was(serve, enter) -> None:
    """It begins elsewhere than where the last one ended: the answer comes first, and its bytes are dropped."""
    server = serve(JOB)
    client = enter(server, JOB)
    frame = client.frame()
    client.push(frame, whole=False)
    head, body = part(client, frame, 1000, 200_000)
    with Peer(server) as peer:
        peer.socket.sendall(head + body[:100])
        assert peer.answer("PUT")[0] == 416
        peer.socket.sendall(body[100:] + question(client))
        status, headers, _ = peer.answer("HEAD")
        assert (status, headers["upload-offset"]) == (200, "0")


def test_a_part_that_was_overtaken_is_dropped_and_its_connection_goes_on(serve, enter) -> None:
    server = serve(JOB)
    client = enter(server, JOB)
    frame = client.frame()
    client.push(frame, whole=False)
    head, _ = part(client, frame, 0, 300_000)
    with Peer(server) as peer:
        peer.socket.sendall(head + bytes(1000))
        while client.ask("HEAD", f"{answers.PUSH}/1.0").headers["upload-offset"] != "1000":
            pass
        later = client.part(frame, 1000, 2000)
        assert later.record(UploadState).next_offset == 3000
        # What the first one still sends would be written over what the second one has.
        peer.socket.sendall(bytes(299_000) + question(client))
        status, _, data = peer.answer("PUT")
        assert (status, decode(UploadState, data).next_offset) == (416, 3000)
        assert peer.answer("HEAD")[1]["upload-offset"] == "3000"


def test_a_peer_that_waits_for_a_word_gets_it(serve, enter) -> None:
    server = serve(JOB)
    client = enter(server, JOB)
    frame = client.frame()
    client.push(frame, whole=False)
    head, body = part(client, frame, 0, 5000, Expect="100-continue")
    with Peer(server) as peer:
        peer.socket.sendall(head)
        assert peer.answer("PUT")[0] == 100
        peer.socket.sendall(body)
        status, _, data = peer.answer("PUT")
        assert (status, decode(UploadState, data).next_offset) == (202, 5000)


def test_a_body_of_unknown_length_is_refused(serve, enter) -> None:
    server = serve(JOB)
    client = enter(server, JOB)
    frame = client.frame()
    client.push(frame, whole=False)
    headers, _ = client.signed("PUT", f"{answers.PUSH}/1.0", frame.header.encode(), 0)
    more = {"Transfer-Encoding": "chunked"}
    status, _, _ = client.raw("PUT", f"{answers.PUSH}/1.0", b"5\r\nabcde\r\n0\r\n\r\n", headers | more)
    assert status == 411
    assert client.ask("HEAD", f"{answers.PUSH}/1.0").headers["upload-offset"] == "0"


def test_a_request_that_arrives_while_a_push_is_looked_at_waits_for_its_answer(
    serve, enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    real = Pushes._decode

    def slow(self: Pushes, upload: Any) -> Any:
        assert release.wait(45)
        return real(self, upload)

    monkeypatch.setattr(Pushes, "_decode", slow)
    server = serve(JOB)
    client = enter(server, JOB)
    frame = client.frame()
    client.push(frame, whole=False)
    head, body = part(client, frame, 0, len(frame.payload))
    with Peer(server) as peer:
        peer.socket.sendall(head + body[:1000])
        while client.ask("HEAD", f"{answers.PUSH}/1.0").headers["upload-offset"] != "1000":
            pass
        peer.socket.sendall(body[1000:] + question(client))
        while client.ask("HEAD", f"{answers.PUSH}/1.0").headers["upload-offset"] != str(len(body)):
            pass
        # Twice, so that the server has looked at all its sockets since then.
        client.ask("HEAD", f"{answers.PUSH}/1.0")
        release.set()
        assert decode(Counted, peer.answer("PUT")[2]) == Counted(1, 1)
        assert peer.answer("HEAD")[0] == 404, "the upload has ended"
