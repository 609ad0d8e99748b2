"""Requests and their answers, byte by byte."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from raw_client import RawClient, job_of, large_model

from softs_fast.paramserver.server.http import application
from softs_fast.paramserver.server.http.budget import Budget
from softs_fast.paramserver.wire import answers
from softs_fast.paramserver.wire.header import Kind
from softs_fast.paramserver.wire.manifest import Manifest
from softs_fast.paramserver.wire.messages import (
    Counted,
    DataRange,
    DataRequest,
    Failure,
    Status,
    Summary,
    UploadState,
    encode,
)


def test_workers_join_pull_and_push(serve, enter) -> None:
    """Strict rounds, as on the page: the mean of the gradients by samples, and the rate times the world's size."""
    server = serve(world_size=2, quorum=2)
    first, second = enter(server), enter(server)
    answer = first.pull()
    assert (answer.status, answer.is_signed) == (200, True)
    header, before = first.contents(answer)
    assert (header.timeline, header.version) == (1, 0)
    assert second.push(second.frame(3.0, samples=1)).record(Counted) == Counted(1, 2)
    assert second.push(second.frame(9.0, samples=1)).record(Counted) == Counted(1, 2, again=True)
    with ThreadPoolExecutor(1) as thread:
        held = thread.submit(second.pull, "1.0", 40.0)
        answer = first.push(first.frame(1.0, samples=3))
    assert (answer.record(Counted), answer.is_signed) == (Counted(2, 2), True)
    header, after = second.contents(held.result())
    assert header.version == 1
    assert torch.allclose(after.parameters, before.parameters - 0.1 * 2 * 1.5)
    assert first.push(first.frame(1.0)).record(Counted).again, "its answer was lost, and the round is closed"


def test_what_has_changed_is_sent(serve, enter) -> None:
    client = enter(serve())
    _, before = client.contents(client.pull())
    client.push(client.frame(1.0))
    answer = client.pull("1.0", 20.0, "xor")
    header, after = client.contents(answer, before.parameters)
    assert header.base == 0
    assert header.codec.name == "XOR"
    assert torch.allclose(after.parameters, before.parameters - 0.1)
    whole = client.pull("7.0", 0.0, "xor")
    assert client.contents(whole)[0].codec.name == "F32"


def test_a_long_poll_ends_with_the_server(serve, enter, caplog: pytest.LogCaptureFixture) -> None:
    server = serve(world_size=2, quorum=2)
    client = enter(server)
    client.push(client.frame())
    got = []
    waiting = threading.Thread(target=lambda: got.append(client.pull("1.0", 40.0)))
    while (silent_s := server.status().members[0].silent_s) < 0.5:
        pass
    last_sign = time.monotonic() - silent_s
    waiting.start()
    # Until the request has arrived: that is a sign of life.
    while (asked := time.monotonic()) - server.status().members[0].silent_s <= last_sign:
        assert asked < last_sign + 40.0
    server.close()
    waiting.join()
    # Not an error, and not the end of the connection in the middle of the answer: the worker looks for the next server.
    assert (got[0].status, got[0].is_signed) == (204, True)
    assert "Exception" not in caplog.text


def test_parts_resume_where_they_ended(serve, enter) -> None:
    job = job_of(large_model)
    client = enter(serve(job), job)
    frame = client.frame()
    n = len(frame.payload)
    announced = client.push(frame, whole=False)
    assert announced.status == 201
    assert announced.record(UploadState).next_offset == 0
    assert client.part(frame, 0, 100_000).record(UploadState).next_offset == 100_000
    wrong = client.part(frame, 50_000, 1000)
    assert (wrong.status, wrong.is_signed) == (416, True)
    assert wrong.record(UploadState).next_offset == 100_000
    head = client.ask("HEAD", f"{answers.PUSH}/1.0")
    assert (head.status, head.headers["upload-offset"], head.is_signed) == (200, "100000", True)
    assert client.push(frame, whole=False).record(UploadState).next_offset == 100_000, "announced again"
    last = client.part(frame, 100_000, n)
    assert (last.status, last.record(Counted).have) == (200, 1)


@pytest.mark.parametrize("more", [b"", b"x"])
def test_other_bytes_than_announced_drop_the_upload(serve, enter, more: bytes) -> None:
    job = job_of(large_model)
    client = enter(serve(job), job)
    frame = client.frame(1.0)
    data = bytes(frame.payload) + more if more else bytes(client.frame(2.0).payload)
    client.push(frame, whole=False)
    n = len(frame.payload)
    target = f"{answers.PUSH}/1.0"
    answer = client.ask("PUT", target, data, digested=frame.header.encode(), offset=0)
    assert (answer.status, answer.code) == (400, "bad-digest")
    missing = client.part(frame, 0, n)
    assert (missing.status, missing.code) == (404, "no-upload")
    client.push(frame, whole=False)
    assert client.part(frame, 0, n).status == 200


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_refused(serve, enter, bad: float) -> None:
    client = enter(serve())
    vector = torch.zeros(client.manifest.n_parameters)
    vector[13] = bad
    answer = client.push(client.frame(vector=vector))
    assert (answer.status, answer.code, answer.is_signed) == (422, "not-finite", True)
    assert b"0.bias" in answer.body
    assert client.push(client.frame()).status == 200


def test_frames_of_another_kind_job_or_model_are_refused(serve, enter) -> None:
    client = enter(serve())
    answer = client.push(client.frame(kind=Kind.DIFFERENCE))
    assert (answer.status, answer.code) == (422, "bad-push")
    other = RawClient(client.invite, Manifest.of(large_model()))
    assert client.push(other.frame(), whole=False).code == "bad-push"
    head = bytearray(client.frame().header.encode())
    head[8] ^= 1
    assert client.ask("POST", answers.PUSH, bytes(head)).code == "bad-push"
    assert client.ask("POST", answers.PUSH, b"SFPS").code == "bad-push"


def test_without_memory_a_push_waits(serve, enter) -> None:
    def huge() -> torch.nn.Module:
        return torch.nn.Linear(1000, 300)

    job = job_of(huge)
    client = enter(serve(job, options={"max_upload_bytes": 1 << 20}), job)
    answer = client.push(client.frame(), whole=False)
    assert (answer.status, answer.code) == (429, "busy")
    assert int(answer.headers["retry-after"]) >= 1


def test_a_failure_of_the_server_has_a_number_too(serve, enter, monkeypatch, caplog) -> None:
    client = enter(serve())

    def broken(*arguments: object) -> None:
        raise RuntimeError("scripted")

    monkeypatch.setattr("softs_fast.paramserver.server.http.application.Application._pull", broken)
    answer = client.pull()
    assert (answer.status, answer.code, answer.is_signed) == (500, "internal", True)
    assert "scripted" in caplog.text, "the cause is in the log of the server alone"
    assert b"scripted" not in answer.body


# --- What proves itself ---


def test_a_nonce_joins_once(serve, enter) -> None:
    client = enter(serve())
    answer = client.join()
    assert (answer.status, answer.code) == (401, "replayed")


def test_a_counter_is_valid_once(serve, enter) -> None:
    client = enter(serve())
    assert client.ask("POST", answers.HEARTBEAT, b"{}", n=5).status == 204
    again = client.ask("POST", answers.HEARTBEAT, b"{}", n=5)
    assert (again.status, again.code, again.is_signed) == (401, "replayed", True)
    assert client.ask("POST", answers.HEARTBEAT, b"{}", n=4).status == 204, "overtaken"


def test_a_changed_request_is_refused(serve, enter) -> None:
    client = enter(serve())
    headers, _ = client.signed("POST", answers.LEAVE, b"{}")
    assert client.raw("POST", answers.PAUSE, b"{}", headers)[0] == 401
    assert client.raw("POST", answers.LEAVE, b"{ }", headers)[0] == 401
    assert client.raw("POST", answers.LEAVE, b"{}", headers)[0] == 204


def test_an_unknown_id_joins_again(serve, enter) -> None:
    client = enter(serve())
    client.id = "0123456789abcdef"
    answer = client.ask("POST", answers.HEARTBEAT, b"{}")
    assert (answer.status, answer.code, answer.is_signed) == (404, "unknown-id", True)


def test_another_protocol_is_refused(serve, enter) -> None:
    server = serve()
    client = RawClient(server.invite, Manifest.of(job_of().model()))
    answer = client.join(protocols=(1, 2))
    assert (answer.status, answer.code) == (426, "protocol")


def test_a_full_run_says_when_to_come(serve, enter) -> None:
    server = serve(max_workers=1)
    first = enter(server)
    first.pull()
    answer = RawClient(server.invite, first.manifest).join()
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "full", "20")


def test_requests_without_a_proof_have_a_budget(serve, enter, monkeypatch) -> None:
    # On a clock that stands still, no request is too slow to empty the bucket.
    monkeypatch.setattr(application, "Budget", lambda: Budget(clock=lambda: 0.0))
    client = enter(serve())
    statuses = [client.raw("GET", answers.MODEL)[0] for _ in range(202)]
    assert statuses == [401] * 200 + [429] * 2
    assert client.pull().status == 200, "a worker at the same address is not shut out"


# --- The rest of the table ---


def test_a_range_of_the_same_frame(serve, enter) -> None:
    client = enter(serve())
    whole = client.pull()
    etag = whole.headers["etag"]
    rest = client.pull(more={"Range": "bytes=140-", "If-Match": etag})
    assert (rest.status, rest.body) == (206, whole.body[140:])
    assert rest.headers["content-range"] == f"bytes 140-{len(whole.body) - 1}/{len(whole.body)}"
    other = client.pull(more={"Range": "bytes=140-", "If-Match": '"00"'})
    assert other.status == 412
    beyond = client.pull(more={"Range": "bytes=99999999-"})
    assert beyond.status == 416


def test_the_end_is_told(serve, enter) -> None:
    server = serve(rounds=1, options={"linger_s": 30})
    client = enter(server)
    client.push(client.frame(loss=0.25))
    answer = client.pull("1.0", 20.0)
    summary = answer.record(Summary)
    assert (answer.status, answer.is_signed) == (410, True)
    assert (summary.version, summary.message, summary.loss) == (1, "all 1 rounds are done", 0.25)
    # The answer may have been lost on the road: the server stays until the worker has left.
    assert client.ask("POST", answers.LEAVE, b"{}").status == 204
    assert server.wait(45.0)


def test_samples_are_handed_out(serve, enter) -> None:
    server = serve(world_size=2, dataset_size=10, config={"seed": 7})
    first, second = enter(server), enter(server)
    wish = encode(DataRequest(4, 1))
    assert first.ask("POST", answers.DATA, wish).record(DataRange) == DataRange(0, 7, ((0, 4),))
    assert second.ask("POST", answers.DATA, wish).record(DataRange).ranges == ((4, 8),)
    first.ask("POST", answers.LEAVE, b"{}")
    assert second.push(second.frame(lease=1)).status == 200
    spent = second.ask("POST", answers.DATA, wish)
    assert (spent.status, spent.code) == (409, "spent")
    second.pull("1.0", 20.0)
    assert second.ask("POST", answers.DATA, encode(DataRequest(4, 2))).record(DataRange).ranges == ((0, 4),)


def test_a_push_names_a_lease_where_there_are_some(serve, enter, tmp_path: Path) -> None:
    server = serve(dataset_size=12)
    client = enter(server)
    client.ask("POST", answers.DATA, encode(DataRequest(4, 1)))
    answer = client.push(client.frame())
    assert (answer.status, answer.code) == (422, "bad-push")
    assert "ask for them at /v1/data" in answer.record(Failure).message
    # In a part, too.
    assert client.push(client.frame(lease=1), whole=False).status == 201
    assert client.part(client.frame(lease=1), 0, 1 << 20).status == 200
    # And none where there is none.
    server.close()
    answer = (other := enter(serve(options={"state": tmp_path / "other"}))).push(other.frame(lease=1))
    assert (answer.status, answer.code) == (422, "bad-push")


def test_a_run_without_samples_says_so(serve, enter) -> None:
    client = enter(serve())
    assert client.ask("POST", answers.DATA, encode(DataRequest(4, 1))).status == 400


def test_pause_and_leave(serve, enter) -> None:
    server = serve(world_size=2, quorum=1)
    first, second = enter(server), enter(server)
    second.pull()
    assert second.ask("POST", answers.PAUSE, b"{}").status == 204
    status = first.ask("GET", f"{answers.STATUS}?since=-1&wait=0").record(Status)
    assert [one.state for one in status.members] == ["active", "paused"]
    assert second.ask("POST", answers.RESUME, b"{}").status == 204
    assert second.ask("POST", answers.LEAVE, b"{}").status == 204
    assert second.ask("POST", answers.HEARTBEAT, b"{}").code == "unknown-id"


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("DELETE", answers.MODEL, 404),
        ("GET", f"{answers.MODEL}?codec=gzip", 400),
        ("GET", f"{answers.MODEL}?have=x", 400),
        ("GET", f"{answers.MODEL}?wait=x", 400),
        ("HEAD", f"{answers.PUSH}/1.0", 404),
        ("HEAD", f"{answers.PUSH}/x", 400),
    ],
)
def test_what_is_not_in_the_table(serve, enter, method: str, target: str, status: int) -> None:
    client = enter(serve())
    answer = client.ask(method, target)
    assert (answer.status, answer.is_signed) == (status, True)
    assert answer.headers["cache-control"] == "no-store, no-transform"


def test_a_long_body_is_refused(serve, enter) -> None:
    client = enter(serve())
    headers, _ = client.signed("POST", answers.HEARTBEAT, b"{}")
    connection = client.connect()
    connection.putrequest("POST", answers.HEARTBEAT)
    for name, value in (headers | {"Content-Length": str(1 << 30)}).items():
        connection.putheader(name, value)
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()
