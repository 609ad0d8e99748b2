"""The state file: what was written durably is there again; `tests/durable` has the log that it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("google.protobuf", reason="needs the extra grpc")
from softs_fast.coordination.job.events import Agreed, Booted, Completed, Ended, StateRecord
from softs_fast.coordination.job.messages import Member, Table, Term
from softs_fast.coordination.server.state_file import open_state_file
from softs_fast.coordination.wire.formats import RECORDS as FORMAT
from softs_fast.durable import Log
from softs_fast.errors import ConfigError, DamagedError, SoftsError

MEMBERS = (Member(0, 0, "a", 1, ""), Member(1, 1, "b", 1, "h:1"))
RECORDS: list[StateRecord] = [
    Booted("job", 1 << 63),
    *(Table(1 << 63, epoch, MEMBERS, 5, "forward", (0,), 0, "p") for epoch in (1, 2)),
    Completed(2, 5, "p"),
    Agreed((Term("product", "1"),)),
    Agreed(()),
    Ended("all members have left"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state"


def written(path: Path) -> bytes:
    file, records = open_state_file(path, "job")
    assert records == []
    for record in RECORDS:
        file.append(FORMAT.encode(record))
    file.close()
    return path.read_bytes()


def read(path: Path, job: str = "job") -> tuple[list[StateRecord], int]:
    file, records = open_state_file(path, job)
    file.close()
    return records, file.dropped


def test_records_are_there_again(path: Path) -> None:
    data = written(path)
    assert data.startswith(b"softs-fast log 1 coordinator\n")
    assert read(path) == (RECORDS, 0)
    assert {one.stat().st_mode & 0o777 for one in path.parent.iterdir()} == {0o600}
    path.write_bytes(data[:-1])
    assert read(path) == (RECORDS[:-1], len(data) - len(path.read_bytes()) - 1)


def test_damage_is_refused_and_the_file_is_left_as_it_is(path: Path) -> None:
    data = written(path)
    flipped = data[:30] + b"\xff" + data[31:]
    path.write_bytes(flipped)
    with pytest.raises(DamagedError, match=f"is damaged at byte 29 of {len(data)}; restore a copy"):
        read(path)
    assert path.read_bytes() == flipped


def test_another_jobs_file_another_version_and_other_files_are_refused(path: Path) -> None:
    data = written(path)
    with pytest.raises(ConfigError, match='is of job "job"; this is the coordinator of "mine"'):
        read(path, "mine")
    assert path.read_bytes() == data
    path.write_bytes(b"softs-fast coordinator 1\n")
    with pytest.raises(
        ConfigError, match="begins with 'softs-fast coordinator 1', expected 'softs-fast log 1 coord"
    ):
        read(path)
    path.unlink()
    log = Log(path, "coordinator", most_bytes=1 << 20, what="log")
    log.append(b"\xff")
    log.close()
    with pytest.raises(ConfigError, match="has a record of another version"):
        read(path)
    with pytest.raises(SoftsError, match="Not a directory"):
        read(path / "none")


def test_compacting_keeps_the_lock_and_the_meaning(path: Path) -> None:
    written(path)
    file, _ = open_state_file(path, "job")
    assert not file.needs_compacting
    file.replace([FORMAT.encode(record) for record in RECORDS[-2:]])
    with pytest.raises(ConfigError, match="in use by this process"):
        read(path)
    file.append(FORMAT.encode(RECORDS[0]))
    file.close()
    assert read(path) == ([*RECORDS[-2:], RECORDS[0]], 0)
    assert sorted(os.listdir(path.parent)) == ["state", "state.lock"]
