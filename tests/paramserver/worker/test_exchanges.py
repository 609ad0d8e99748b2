"""Uploads and downloads as machines: whatever is lost, a push is counted once and weights arrive whole."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
import torch

from softs_fast.errors import ConfigError, SoftsError, WireError
from softs_fast.paramserver.wire.frame import Frame, encode_frame
from softs_fast.paramserver.wire.header import HEADER_BYTES, Codec, Kind
from softs_fast.paramserver.wire.limits import WHOLE_FRAME_BYTES
from softs_fast.paramserver.wire.manifest import Entry, Manifest
from softs_fast.paramserver.wire.messages import Counted, Failure, Stale, Summary, UploadState, encode
from softs_fast.paramserver.wire.tensors import Contents
from softs_fast.paramserver.worker.exchanges import Answer, Call, Download, Request, Upload
from softs_fast.paramserver.worker.retries import Trouble
from softs_fast.paramserver.worker.sizes import PartSizes, PollWait

JOB = bytes(16)


def manifest_of(n: int) -> Manifest:
    return Manifest((Entry("w", "float32", (n,)),))


def push_of(n: int, version: int = 3) -> Frame:
    return encode_frame(
        Contents(torch.arange(n, dtype=torch.float32)), kind=Kind.GRADIENT, codec=Codec.F32, job=JOB,
        manifest=manifest_of(n), timeline=1, version=version, samples=4,
    )  # fmt: skip


class Receiver:
    """A server of uploads, without a wire."""

    def __init__(self) -> None:
        self.counted: Counter[bytes] = Counter()
        self.header: bytes | None = None
        self.payload = bytearray()
        self.n_bytes = 0
        self.is_stale = False
        self.max_body = 1 << 30

    def handle(self, request: Request) -> Answer:
        body = b"".join(bytes(piece) for piece in request.body)
        if len(body) > self.max_body:
            return Answer(413, encode(Failure("too-long", "")))
        if request.digested in self.counted:
            return Answer(200, encode(Counted(1, 1, again=True)))
        if self.is_stale and request.method != "HEAD":
            return Answer(409, encode(Stale(1, 9)))
        if request.method == "HEAD":
            return Answer(404) if self.header is None else Answer(200, offset=len(self.payload))
        if request.method == "POST":
            assert body[:HEADER_BYTES] == request.digested
            if self.header != request.digested:
                self.header, self.payload = request.digested, bytearray()
            if len(body) > HEADER_BYTES:
                self.payload = bytearray(body[HEADER_BYTES:])
            return self.state(201)
        if self.header is None:
            return Answer(404, encode(Failure("no-upload", "")))
        if request.offset != len(self.payload):
            return Answer(416, encode(UploadState(len(self.payload))))
        self.payload += body
        self.n_bytes += len(body)
        return self.state(202)

    def state(self, status: int) -> Answer:
        assert self.header is not None
        n = int.from_bytes(self.header[80:88], "little")
        if len(self.payload) < n:
            return Answer(status, encode(UploadState(len(self.payload), 1 << 20)))
        self.counted[self.header] += 1
        self.received, self.header, self.payload = bytes(self.payload), None, bytearray()
        return Answer(200, encode(Counted(1, 1)))


def drive(upload: Upload, receiver: Receiver, fault: Callable[[], str]) -> int:
    """Run an exchange; `fault` returns what happens to each request. Returns how many there were."""
    for n in range(1, 5000):
        request = upload.next()
        match fault():
            case "lost":
                upload.failed(Trouble.CUT, 0.1, 0)
                continue
            case "unanswered":
                receiver.handle(request)
                upload.failed(Trouble.CUT, 0.1, 0)
                continue
            case "page":
                upload.failed(Trouble.FOREIGN, 0.1, 502)
                continue
            case "restart":
                receiver.header, receiver.payload = None, bytearray()
                upload.failed(Trouble.BUSY, 0.0, 0)
                upload.rejoined()
                continue
            case "dropped":
                receiver.header, receiver.payload = None, bytearray()
        if upload.answered(receiver.handle(request), 1.0):
            return n
    raise AssertionError("an upload does not end")


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_lost_a_push_is_counted_once(seed: int) -> None:
    generator = random.Random(seed)
    n = generator.choice([1, 1000, 65_504, 65_505, 300_000, 1_000_000])
    frame, receiver = push_of(n), Receiver()
    kinds = ["lost", "unanswered", "page", "restart", "dropped"]
    rate = generator.choice([0.0, 0.2, 0.6])
    progress: list[int] = []
    upload = Upload(frame, PartSizes(256 << 10, 1 << 20), progress.append)
    drive(upload, receiver, lambda: generator.choice(kinds) if generator.random() < rate else "")
    assert isinstance(upload.result, Counted)
    assert receiver.counted == {frame.header.encode(): 1}
    assert receiver.received == bytes(frame.payload)
    assert progress[-1] == len(frame.payload)


def test_a_small_push_is_one_request_and_a_large_one_is_in_parts() -> None:
    for n, expected in (
        ((WHOLE_FRAME_BYTES - HEADER_BYTES) // 4, 1),
        (WHOLE_FRAME_BYTES // 4, 2),
        (4 << 20, 6),
    ):
        receiver = Receiver()
        assert drive(Upload(push_of(n), PartSizes(1 << 20, 4 << 20)), receiver, lambda: "") >= expected
        assert receiver.n_bytes == (0 if expected == 1 else 4 * n)


def test_a_stale_push_costs_one_part_at_most() -> None:
    receiver = Receiver()
    upload = Upload(push_of(4 << 20), PartSizes(1 << 20))
    request = upload.next()
    assert not upload.answered(receiver.handle(request), 0.1)
    request = upload.next()
    receiver.is_stale = True
    assert upload.answered(receiver.handle(request), 0.1)
    assert upload.result == Stale(1, 9)
    assert receiver.n_bytes == 0


def test_a_limit_on_the_road_is_found() -> None:
    receiver = Receiver()
    receiver.max_body = 100_000
    frame = push_of(200_000)
    drive(Upload(frame, PartSizes(1 << 20)), receiver, lambda: "")
    assert receiver.counted == {frame.header.encode(): 1}
    # Whole, then header only.
    small = push_of(40_000)
    drive(Upload(small, PartSizes(1 << 20)), receiver, lambda: "")
    assert receiver.counted[small.header.encode()] == 1


def test_a_page_of_a_proxy_with_413_halves_the_part() -> None:
    receiver, sizes = Receiver(), PartSizes(1 << 20)
    upload = Upload(push_of(1 << 20), sizes)
    assert not upload.answered(receiver.handle(upload.next()), 0.1)
    assert len(upload.next().body[0]) == 1 << 20
    upload.failed(Trouble.FOREIGN, 0.1, 413)
    assert upload.next().method == "HEAD"
    assert not upload.answered(receiver.handle(upload.next()), 0.1)
    assert len(upload.next().body[0]) == 1 << 19


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (Answer(403, encode(Failure("kicked", "w1 was removed", "ask"))), ConfigError, "a push: w1 was removed; ask .PS03"),
        (Answer(422, encode(Failure("not-finite", "b has NaN"))), WireError, "a push: b has NaN"),
        (Answer(409, encode(Failure("other-manifest", "b is new"))), ConfigError, "b is new"),
        (Answer(426, b"?"), ConfigError, "the server answered 426; install the same version"),
        (Answer(201, encode(UploadState(1 << 30))), WireError, "wants byte 1073741824 of a push of 40 bytes"),
        (Answer(201, encode(UploadState(40))), WireError, "neither counts nor refuses it"),
    ],
)  # fmt: skip
def test_answers_that_end_a_worker(answer: Answer, error: type[SoftsError], text: str) -> None:
    upload = Upload(push_of(10), PartSizes(1 << 20))
    upload.next()
    with pytest.raises(error, match=text):
        upload.answered(answer, 0.1)


def test_a_part_goes_where_the_server_says() -> None:
    """An earlier part of the same offset was lost, or arrived twice: what this side has sent says nothing."""
    upload = Upload(push_of(1 << 20), PartSizes(1 << 18))
    upload.next()
    assert not upload.answered(Answer(201, encode(UploadState(0))), 0.1)
    upload.next()
    assert not upload.answered(Answer(416, encode(UploadState(5))), 0.1)
    assert upload.next().offset == 5


def test_the_end_of_a_run_ends_an_upload() -> None:
    upload = Upload(push_of(10), PartSizes(1 << 20))
    upload.next()
    assert upload.answered(Answer(410, encode(Summary(1, 9, "done"))), 0.1)
    assert upload.result == Summary(1, 9, "done")


def test_a_call_with_an_unexpected_answer_is_an_error() -> None:
    call = Call("POST", "/v1/pause", b"{}")
    assert call.next().body == (b"{}",)
    with pytest.raises(ConfigError, match="POST /v1/pause: no"):
        call.answered(Answer(403, encode(Failure("kicked", "no"))), 0.0)
    assert call.answered(Answer(204), 0.0)
    assert call.answer == Answer(204)


def test_a_download_goes_on_where_it_was_cut() -> None:
    manifest = manifest_of(1000)
    frame = encode_frame(
        Contents(torch.rand(1000)), kind=Kind.WEIGHTS, codec=Codec.F32, job=JOB, manifest=manifest, timeline=1, version=2
    )  # fmt: skip
    download = Download(lambda wait_s: f"/v1/model?wait={wait_s:g}", PollWait(25.0), manifest, JOB)
    assert download.next() == Request("GET", "/v1/model?wait=25", held_s=25.0)
    assert download.head(200) is None
    download.begin(frame.header.encode())
    payload = bytes(frame.payload)
    download.room()[:1234] = payload[:1234]
    download.received(1234)
    download.failed(Trouble.CUT, 0.5, 0)
    request = download.next()
    assert (request.target, request.begin, request.held_s) == ("/v1/model?wait=0", 128 + 1234, 0.0)
    assert request.etag == frame.header.signed_digest.hex()
    assert download.head(206) == frame.header.encode()
    assert not download.is_complete
    download.room()[:] = payload[1234:]
    download.received(len(payload) - 1234)
    assert download.is_intact
    assert download.answered(Answer(206), 0.1)


def test_a_download_of_weights_that_have_gone_begins_again() -> None:
    manifest = manifest_of(10)
    frame = encode_frame(
        Contents(torch.rand(10)), kind=Kind.WEIGHTS, codec=Codec.F32, job=JOB, manifest=manifest, timeline=1, version=2
    )  # fmt: skip
    download = Download(lambda wait_s: "/v1/model", PollWait(25.0), manifest, JOB)
    download.begin(frame.header.encode())
    download.received(7)
    assert not download.answered(Answer(412), 0.1)
    assert (download.next().begin, download.next().etag) == (0, "")
    assert download.answered(Answer(204), 25.0)
    assert not download.is_complete
    other = manifest_of(11)
    with pytest.raises(WireError, match="is of the model"):
        Download(lambda wait_s: "", PollWait(1.0), other, JOB).begin(frame.header.encode())
