"""Uploads above the budget of memory: in files without a name, and refused where the disk is full."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from raw_client import job_of

from softs_fast.paramserver.server import spill
from softs_fast.paramserver.server.spill import room_on_disk
from softs_fast.paramserver.wire.messages import Failure

#: Memory for one push of this model, and no second one.
BUDGET = {"max_upload_bytes": 2 << 20}


def huge() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Linear(1000, 300)


def open_files(folder: Path) -> list[Path]:
    """Descriptors of files without a name that this process has in a folder."""
    found = []
    for one in Path("/proc/self/fd").iterdir():
        try:
            link = os.readlink(one)
        except OSError:
            continue
        if link.startswith(str(folder)) and "deleted" in link:
            found.append(one)
    return found


@pytest.mark.parametrize("has_fallocate", [True, False])
def test_a_file_has_its_blocks_and_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_fallocate: bool
) -> None:
    if not has_fallocate:
        monkeypatch.delattr(os, "posix_fallocate")
    room = room_on_disk(tmp_path, 3_000_001)
    assert len(room) == 3_000_001
    assert list(tmp_path.iterdir()) == []
    (descriptor,) = open_files(tmp_path)
    found = os.stat(descriptor)
    assert found.st_mode & 0o777 == 0o600
    assert found.st_blocks * 512 >= 3_000_001
    room[-3:] = b"end"
    assert bytes(room[-4:]) == b"\0end"
    del room
    assert open_files(tmp_path) == []


def test_pushes_above_the_budget_count_as_all_others(serve, enter, tmp_path: Path) -> None:
    job = job_of(huge)
    server = serve(job, options=BUDGET, world=3, quorum=3, scale_by_world=False)
    workers = [enter(server, job) for _ in range(3)]
    _, before = workers[0].contents(workers[0].pull())
    frames = [worker.frame(value) for worker, value in zip(workers, (1.0, 2.0, 6.0), strict=True)]
    half = 1 << 19
    for worker, frame in zip(workers, frames, strict=True):
        assert worker.push(frame, whole=False).status == 201
        assert worker.part(frame, 0, half).status == 202
    assert len(open_files(tmp_path)) == 2, "the first one is in memory"
    metrics = workers[0].raw("GET", "/metrics")[2].decode()
    assert "paramserver_upload_bytes 1201200\n" in metrics
    assert "paramserver_upload_disk_bytes 2402400\n" in metrics
    for worker, frame in zip(workers, frames, strict=True):
        assert worker.part(frame, half, 1 << 22).status == 200
    _, after = workers[0].contents(workers[0].pull("1.0", 20.0))
    assert torch.allclose(after.parameters, before.parameters - 0.1 * 3.0)
    server.close()
    assert open_files(tmp_path) == []


def test_a_full_disk_refuses_a_push_and_nothing_is_lost(
    serve, enter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(huge)
    server = serve(job, options=BUDGET, world=2, quorum=2)
    first, second = enter(server, job), enter(server, job)
    assert first.push(first.frame(), whole=False).status == 201
    assert first.part(first.frame(), 0, 1 << 19).status == 202

    def full(descriptor: int, offset: int, n: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(spill.os, "posix_fallocate", full)
        answer = second.push(second.frame(), whole=False)
    assert (answer.status, answer.code) == (429, "busy")
    assert int(answer.headers["retry-after"]) >= 1
    assert "No space left on device" in answer.record(Failure).message
    assert "--upload-disk" in answer.record(Failure).remedy
    assert open_files(tmp_path) == []
    # Neither what was there, nor the push itself.
    assert first.part(first.frame(), 1 << 19, 1 << 22).status == 200
    assert second.push(second.frame(), whole=False).status == 201
    assert second.part(second.frame(), 0, 1 << 22).status == 200


def test_a_budget_of_the_disk(serve, enter) -> None:
    job = job_of(huge)
    server = serve(
        job, options={"max_upload_bytes": 1 << 20, "max_upload_disk_bytes": 2 << 20}, world=2, quorum=2
    )
    first, second = enter(server, job), enter(server, job)
    assert first.push(first.frame(), whole=False).status == 201
    answer = second.push(second.frame(), whole=False)
    assert (answer.status, answer.code) == (429, "busy")
    assert "1201200 of 2097152 on disk" in answer.record(Failure).message
