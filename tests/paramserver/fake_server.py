"""A parameter server in one thread, with nothing but the wire: what a worker is tested against."""

from __future__ import annotations

import secrets
import ssl
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

import torch
from http_thread import HttpThread
from torch import nn
from waiting import WATCHDOG_S

from softs_fast.errors import WireError
from softs_fast.paramserver.wire import answers, messages, signing
from softs_fast.paramserver.wire.answers import Code, parse_version, version_text
from softs_fast.paramserver.wire.frame import Frame, check_header, decode_payload, encode_frame
from softs_fast.paramserver.wire.header import HEADER_BYTES, Codec, FrameHeader, Kind
from softs_fast.paramserver.wire.invite import Invite
from softs_fast.paramserver.wire.manifest import Manifest
from softs_fast.paramserver.wire.messages import RunConfig, decode, encode
from softs_fast.paramserver.wire.tensors import Contents, first_not_finite, of_module
from softs_fast.paramserver.worker.options import WorkerOptions

#: Of the workers in most tests.
OPTIONS = WorkerOptions("test", rejoin_timeout_s=20.0)


def linear() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(3, 1)


@dataclass
class Member:
    """A worker, as the server knows it."""

    key: bytes
    rank: int
    window: signing.CounterWindow = field(default_factory=signing.CounterWindow)
    header: FrameHeader | None = None
    payload: bytearray = field(default_factory=bytearray)


@dataclass
class Answer:
    """Of one request; `head` is the header of the frame of which the body is a range."""

    status: int
    body: bytes = b""
    offset: int | None = None
    head: bytes = b""


class FakeServer:
    """Rounds close when `need` pushes were counted; then SGD with `lr` makes the next version.

    Attributes:
        counted: pushes that were counted, by (worker id, T, V): each must be counted once.
        requests: how often each method and path was asked for.
        before: called with (method, path) before a request is answered; may return an answer of its own.
        before_body: the same, with the body.

    Args:
        context: TLS that lets in holders of a token alone; the server tells them the secret.
    """

    def __init__(
        self,
        module: nn.Module,
        config: RunConfig,
        *,
        world_size: int = 1,
        need: int = 1,
        lr: float = 0.1,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._context = context
        self.manifest = Manifest.of(module)
        self.config, self.world_size, self.need, self.lr = config, world_size, need, lr
        self.contents = of_module(module, self.manifest)
        self.job, self.secret = secrets.token_bytes(16), secrets.token_bytes(32)
        self.timeline, self.version = 1, 0
        self.members: dict[str, Member] = {}
        self.round: dict[str, tuple[Contents, int]] = {}
        self.counted: Counter[tuple[str, int, int]] = Counter()
        self.requests: Counter[str] = Counter()
        self.parts: list[int] = []
        self.frames: list[FrameHeader] = []
        self.pushes: list[Contents] = []
        self.left: list[str] = []
        self.before: Callable[[str, str], Answer | None] = lambda method, path: None
        self.before_body: Callable[[str, str, bytes], Answer | None] = lambda method, path, body: None
        self.changed = threading.Condition()
        self.history: dict[tuple[int, int], Any] = {}
        self.is_stopped = False
        self._listen(0)

    def _listen(self, port: int) -> None:
        self._http = HttpThread(self._answer, port, self._context)

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        n = int(handler.headers.get("Content-Length", 0))
        body = handler.rfile.read(n)
        if len(body) < n:
            handler.close_connection = True
            return
        status, headers, data = self.handle(handler.command, handler.path, dict(handler.headers), body)
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        if status != 204:
            handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        if handler.command != "HEAD" and status != 204:
            handler.wfile.write(data)

    @property
    def port(self) -> int:
        return self._http.port

    @property
    def invite(self) -> Invite:
        return Invite(f"http://127.0.0.1:{self.port}", self.job, self.secret)

    def stop(self) -> None:
        """Stop listening, and cut all connections."""
        self._http.stop()
        with self.changed:
            self.is_stopped = True
            self.changed.notify_all()

    def restart(self) -> None:
        """Start again as from a file: no member is known, and the timeline is the next one."""
        port = self.port
        self.stop()
        self.members.clear()
        self.round.clear()
        self.timeline += 1
        self.is_stopped = False
        self._listen(port)

    def __enter__(self) -> FakeServer:
        return self

    def __exit__(self, *arguments: object) -> None:
        self.stop()

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Wait until a condition holds; the server's state changes under `changed`."""
        with self.changed:
            assert self.changed.wait_for(condition, WATCHDOG_S)

    def handle(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        """Answer a request, signed."""
        path = urlsplit(target).path
        if self._context is not None and path == answers.INVITE:
            self.requests[f"{method} {path}"] += 1
            return 200, {}, encode(messages.Admission(self.job.hex(), self.secret.hex()))
        try:
            given = signing.Authorization.parse(headers.get("Authorization", ""))
        except WireError:
            return 401, {}, b"{}"
        offset = int(headers["Upload-Offset"]) if "Upload-Offset" in headers else None
        is_push = path.startswith(answers.PUSH)
        answer: Answer | None
        with self.changed:
            self.requests[f"{method} {path.rpartition('/')[0] if path.count('/') > 2 else path}"] += 1
            key, answer = self._key_of(given, body)
            member = self.members.get(given.worker_id)
            if answer is None:
                digested = body[:HEADER_BYTES] if is_push else body
                if method == "PUT" and member is not None and member.header is not None:
                    digested = member.header.encode()
                mac = signing.request_mac(
                    key, worker_id=given.worker_id, method=method, target=target, n=given.n, upload_offset=offset,
                    digested=digested,
                )  # fmt: skip
                if method == "PUT" and (member is None or member.header is None):
                    answer = self._failure(404, Code.NO_UPLOAD)
                elif mac != given.mac:
                    answer, key = self._failure(401, Code.BAD_MAC), signing.answer_key(self.secret, self.job)
                elif member is not None and not member.window.take(given.n):
                    answer = self._failure(401, Code.REPLAYED)
            if answer is None:
                answer = self.before(method, path) or self.before_body(method, path, body)
            if answer is None:
                answer = self._route(
                    method, path, parse_qs(urlsplit(target).query), given, offset, headers, body
                )
            if given.worker_id == signing.NEW:
                nonce = bytes.fromhex(decode(messages.JoinRequest, body, 1 << 22).nonce)
                key = signing.join_key(self.secret, self.job, nonce)
            self.changed.notify_all()
            version = version_text(self.timeline, self.version)
        sent = {answers.VERSION: version, **answers.HEADERS}
        if answer.offset is not None:
            sent[answers.UPLOAD_OFFSET] = str(answer.offset)
        digested = answer.head or (b"" if method == "HEAD" else answer.body)
        sent[answers.MAC] = signing.answer_mac(
            key, request=given.mac, status=answer.status, version=version, upload_offset=sent.get(answers.UPLOAD_OFFSET),
            digested=digested,
        )  # fmt: skip
        return answer.status, sent, answer.body

    def _key_of(self, given: signing.Authorization, body: bytes) -> tuple[bytes, Answer | None]:
        if given.worker_id == signing.NEW:
            nonce = bytes.fromhex(decode(messages.JoinRequest, body, 1 << 22).nonce)
            return signing.join_key(self.secret, self.job, nonce), None
        if (member := self.members.get(given.worker_id)) is None:
            return signing.answer_key(self.secret, self.job), self._failure(404, Code.UNKNOWN_ID)
        return member.key, None

    def _failure(self, status: int, code: str, message: str = "as scripted") -> Answer:
        return Answer(status, encode(messages.Failure(code, message, "nothing")))

    def _route(
        self, method: str, path: str, query: dict[str, list[str]], given: signing.Authorization,
        offset: int | None, headers: dict[str, str], body: bytes,
    ) -> Answer:  # fmt: skip
        worker = given.worker_id
        if path == answers.JOIN:
            return self._join(body)
        if path == answers.MODEL:
            return self._model(query, headers)
        if path == answers.PUSH:
            return self._announce(worker, body)
        if path.startswith(answers.PUSH):
            return self._part(worker, method, path, offset, body)
        if path == answers.LEAVE:
            self.left.append(worker)
        if path == answers.DATA:
            n = decode(messages.DataRequest, body).n
            return Answer(200, encode(messages.DataRange(0, 5, ((0, n),))))
        return Answer(204)

    def _join(self, body: bytes) -> Answer:
        request = decode(messages.JoinRequest, body, 1 << 22)
        theirs = Manifest.decode(request.manifest.encode())
        if (difference := self.manifest.first_difference(theirs)) is not None:
            return self._failure(409, Code.OTHER_MANIFEST, difference)
        worker = request.old_id or f"w{len(self.members)}"
        nonce = secrets.token_bytes(16)
        key = signing.session_key(self.secret, self.job, bytes.fromhex(request.nonce), nonce, worker)
        rank = len(self.members)
        self.members[worker] = Member(key, rank)
        return Answer(
            200,
            encode(
                messages.JoinAnswer(
                    worker, rank, self.world_size, self.config, nonce.hex(), self.timeline, self.version
                )
            ),
        )

    @property
    def is_over(self) -> bool:
        return self.version >= self.config.rounds

    def _model(self, query: dict[str, list[str]], headers: dict[str, str]) -> Answer:
        have = parse_version(query["have"][0]) if "have" in query else None
        held = float(query.get("wait", ["0"])[0])
        if have == (self.timeline, self.version) and not self.is_over:
            # The others answer meanwhile: waiting gives the lock away.
            self.changed.wait_for(lambda: have != (self.timeline, self.version) or self.is_stopped, held)
            if have == (self.timeline, self.version):
                return Answer(204)
        if self.is_over and have is not None:
            return Answer(410, encode(messages.Summary(self.timeline, self.version, "done", 0.5)))
        frame = self._frame(query["codec"][0], have)
        head = frame.header.encode()
        whole = head + bytes(frame.payload)
        if "Range" not in headers:
            return Answer(200, whole, head=head)
        if headers["If-Match"] != f'"{frame.header.signed_digest.hex()}"':
            return self._failure(412, "changed")
        begin = int(headers["Range"].removeprefix("bytes=").removesuffix("-"))
        return Answer(206, whole[begin:], head=head)

    def _frame(self, codec: str, have: tuple[int, int] | None) -> Frame:
        self.history[self.timeline, self.version] = self.contents.parameters
        base = None
        if codec == "xor" and have in self.history and have[0] == self.timeline:  # type: ignore[index]
            base = (have[1], self.history[have])  # type: ignore[index]
        kind = Codec.BF16 if codec == "bf16" else Codec.XOR if base else Codec.F32
        return encode_frame(
            self.contents, kind=Kind.WEIGHTS, codec=kind, job=self.job, manifest=self.manifest,
            timeline=self.timeline, version=self.version, planes=kind is Codec.XOR, base=base,
        )  # fmt: skip

    def _announce(self, worker: str, body: bytes) -> Answer:
        header = FrameHeader.decode(body)
        check_header(header, self.manifest, self.job)
        if (stale := self._stale(worker, header)) is not None:
            return stale
        member = self.members[worker]
        if member.header != header:
            member.header, member.payload = header, bytearray()
        if len(body) > HEADER_BYTES:
            member.payload = bytearray(body[HEADER_BYTES:])
        return self._state(worker, 201)

    def _stale(self, worker: str, header: FrameHeader) -> Answer | None:
        if (worker, header.timeline, header.version) in self.counted:
            return Answer(200, encode(messages.Counted(len(self.round), self.need, again=True)))
        if (header.timeline, header.version) != (self.timeline, self.version):
            return Answer(409, encode(messages.Stale(self.timeline, self.version)))
        return None

    def _part(self, worker: str, method: str, path: str, offset: int | None, body: bytes) -> Answer:
        member = self.members[worker]
        header = member.header
        if header is None or path.rpartition("/")[2] != version_text(header.timeline, header.version):
            return self._failure(404, Code.NO_UPLOAD)
        if method == "HEAD":
            return Answer(200, offset=len(member.payload))
        if (stale := self._stale(worker, header)) is not None:
            return stale
        if offset != len(member.payload):
            return Answer(416, encode(messages.UploadState(len(member.payload))))
        self.parts.append(len(body))
        member.payload += body
        return self._state(worker, 202)

    def _state(self, worker: str, status: int) -> Answer:
        member = self.members[worker]
        header = member.header
        assert header is not None
        if len(member.payload) < header.encoded_bytes:
            return Answer(
                status, encode(messages.UploadState(len(member.payload), self.config.max_part_bytes))
            )
        payload, member.header, member.payload = member.payload, None, bytearray()
        try:
            contents = decode_payload(header, payload, self.manifest)
        except WireError:
            return self._failure(400, Code.BAD_DIGEST)
        if (name := first_not_finite(contents, self.manifest)) is not None:
            return self._failure(422, Code.NOT_FINITE, f"{name} is not finite")
        self.counted[worker, header.timeline, header.version] += 1
        self.frames.append(header)
        self.pushes.append(contents)
        self.round[worker] = (contents, header.samples)
        counted = messages.Counted(len(self.round), self.need)
        if len(self.round) >= self.need:
            self._apply()
        return Answer(200, encode(counted))

    def _apply(self) -> None:
        total = sum(n for _, n in self.round.values())
        pushes = [self.round[worker] for worker in sorted(self.round)]
        mean = sum((n * one.parameters for one, n in pushes), torch.zeros(())) / total
        self.contents = Contents(
            self.contents.parameters - self.lr * mean, pushes[0][0].floats, pushes[0][0].integers
        )
        if self.contents.floats is None:
            self.contents = Contents(
                self.contents.parameters,
                torch.zeros(self.manifest.n_floats),
                torch.zeros(0, dtype=torch.int64),
            )
        self.round.clear()
        self.version += 1
