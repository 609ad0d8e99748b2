"""A worker that says exactly what a test wants, over one connection per request."""

from __future__ import annotations

import http.client
import secrets
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

import torch
from torch import nn
from waiting import WATCHDOG_S

from softs_fast.paramserver.job import Job
from softs_fast.paramserver.wire import answers, signing
from softs_fast.paramserver.wire.frame import Frame, decode_payload, encode_frame
from softs_fast.paramserver.wire.header import HEADER_BYTES, PROTOCOL, Codec, FrameHeader, Kind
from softs_fast.paramserver.wire.invite import Invite
from softs_fast.paramserver.wire.manifest import Manifest
from softs_fast.paramserver.wire.messages import JoinAnswer, JoinRequest, decode, encode
from softs_fast.paramserver.wire.tensors import Contents

_Record = TypeVar("_Record")


def small_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


def large_model() -> nn.Module:
    """Of more than 256 KiB, so that pushes go in parts."""
    torch.manual_seed(1)
    return nn.Linear(400, 300)


def job_of(model: Any = small_model, **more: Any) -> Job:
    return Job(model, lambda module, batch: module(batch).sum(), list, **more)


@dataclass
class Answer:
    """What the server said, after its signature was checked."""

    status: int
    headers: dict[str, str]
    body: bytes
    is_signed: bool

    def record(self, kind: type[_Record]) -> _Record:
        return decode(kind, self.body, 4 << 20)

    @property
    def code(self) -> str:
        import json

        return str(json.loads(self.body)["code"])


@dataclass
class RawClient:
    """One worker."""

    invite: Invite
    manifest: Manifest
    name: str = "w"
    key: bytes = b""
    id: str = ""
    n: int = 0
    joined: JoinAnswer | None = None
    nonce: bytes = field(default_factory=lambda: secrets.token_bytes(16))

    def connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.invite.url)
        assert parts.hostname is not None
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=WATCHDOG_S)

    def raw(
        self, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        connection = self.connect()
        try:
            connection.request(method, target, body or None, headers or {})
            response = connection.getresponse()
            return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
        finally:
            connection.close()

    def join_request(self, **changes: Any) -> JoinRequest:
        given = {
            "name": self.name,
            "protocols": (PROTOCOL,),
            "manifest": self.manifest.encoded.decode(),
            "nonce": self.nonce.hex(),
            "old_id": "",
        }
        return JoinRequest(**(given | changes))

    def join(self, **changes: Any) -> Answer:
        wish = self.join_request(**changes)
        body = encode(wish)
        key = signing.join_key(self.invite.secret, self.invite.job, self.nonce)
        mac = signing.request_mac(
            key, worker_id="new", method="POST", target=answers.JOIN, n=0, digested=body
        )
        headers = {"Authorization": str(signing.Authorization("new", 0, mac))}
        answer = self._checked(key, mac, *self.raw("POST", answers.JOIN, body, headers))
        if answer.status == 200:
            self.joined = answer.record(JoinAnswer)
            self.id, self.n = self.joined.worker_id, 0
            self.key = signing.session_key(
                self.invite.secret, self.invite.job, self.nonce, bytes.fromhex(self.joined.nonce), self.id
            )
        return answer

    def signed(
        self, method: str, target: str, digested: bytes = b"", offset: int | None = None, n: int | None = None
    ) -> tuple[dict[str, str], str]:
        """Headers of a request, and its mac."""
        if n is None:
            self.n += 1
            n = self.n
        mac = signing.request_mac(
            self.key,
            worker_id=self.id,
            method=method,
            target=target,
            n=n,
            upload_offset=offset,
            digested=digested,
        )
        headers = {"Authorization": str(signing.Authorization(self.id, n, mac))}
        if offset is not None:
            headers[answers.UPLOAD_OFFSET] = str(offset)
        return headers, mac

    def ask(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        *,
        digested: bytes | None = None,
        offset: int | None = None,
        n: int | None = None,
        more: dict[str, str] | None = None,
    ) -> Answer:
        headers, mac = self.signed(method, target, body if digested is None else digested, offset, n)
        return self._checked(self.key, mac, *self.raw(method, target, body, headers | (more or {})))

    def pull(self, have: str | None = None, wait_s: float = 0.0, codec: str = "f32", **more: Any) -> Answer:
        query = f"have={have}&wait={wait_s:g}&" if have else ""
        return self.ask("GET", f"{answers.MODEL}?{query}codec={codec}", **more)

    def contents(self, answer: Answer, base: torch.Tensor | None = None) -> tuple[FrameHeader, Contents]:
        header = FrameHeader.decode(answer.body)
        return header, decode_payload(header, bytearray(answer.body[HEADER_BYTES:]), self.manifest, base=base)

    def frame(
        self,
        value: float = 1.0,
        version: tuple[int, int] = (1, 0),
        samples: int = 1,
        kind: Kind = Kind.GRADIENT,
        loss: float = 0.5,
        vector: torch.Tensor | None = None,
        buffers: tuple[torch.Tensor, torch.Tensor] | None = None,
        lease: int = 0,
    ) -> Frame:
        vector = torch.full((self.manifest.n_parameters,), value) if vector is None else vector
        floats, integers = buffers or (None, None)
        return encode_frame(
            Contents(vector, floats, integers),
            kind=kind,
            codec=Codec.F32,
            job=self.invite.job,
            manifest=self.manifest,
            timeline=version[0],
            version=version[1],
            samples=samples,
            loss=loss,
            lease=lease,
        )

    def push(self, frame: Frame, whole: bool = True) -> Answer:
        head = frame.header.encode()
        return self.ask("POST", answers.PUSH, head + (bytes(frame.payload) if whole else b""), digested=head)

    def part(self, frame: Frame, offset: int, n: int) -> Answer:
        target = f"{answers.PUSH}/{answers.version_text(frame.header.timeline, frame.header.version)}"
        data = bytes(frame.payload[offset : offset + n])
        return self.ask("PUT", target, data, digested=frame.header.encode(), offset=offset)

    def _checked(self, key: bytes, mac: str, status: int, headers: dict[str, str], body: bytes) -> Answer:
        is_frame = headers.get("content-type") == "application/octet-stream"
        digested = body[:HEADER_BYTES] if is_frame else body
        is_signed = any(
            signing.check_answer(
                signing.answer_mac(
                    one,
                    request=mac,
                    status=status,
                    version=headers.get(answers.VERSION.lower()),
                    upload_offset=headers.get(answers.UPLOAD_OFFSET.lower()),
                    digested=digested,
                ),
                headers.get(answers.MAC.lower()),
            )
            for one in (key, signing.answer_key(self.invite.secret, self.invite.job))
        )
        return Answer(status, headers, body, is_signed)
