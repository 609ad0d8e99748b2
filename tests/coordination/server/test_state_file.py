"""The state file: what was written durably is there again, whatever cut the coordinator short."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("google.protobuf", reason="needs the extra grpc")
from softs_fast.coordination.job.events import Booted, Completed, Opened, Record
from softs_fast.coordination.job.messages import Member, Table
from softs_fast.coordination.server.state_file import StateFile
from softs_fast.errors import ConfigError, SoftsError

MEMBERS = (Member(0, 0, "a", 1, ""), Member(1, 1, "b", 1, "h:1"))
RECORDS: list[Record] = [
    Booted("job", 1 << 63),
    *(Opened(Table(1 << 63, epoch, MEMBERS, 5, "forward", (0,), 0, "p")) for epoch in (1, 2)),
    Completed(2, 5, "p"),
]
HOLDER = """
import sys; from pathlib import Path
from softs_fast.coordination.server.state_file import StateFile
file = StateFile(Path(sys.argv[1]), "job"); print("ready", flush=True); sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state"


def written(path: Path, records: list[Record] = RECORDS) -> bytes:
    file = StateFile(path, "job")
    assert file.records == []
    for record in records:
        file.append(record)
    file.close()
    return path.read_bytes()


def read(path: Path, job: str = "job") -> tuple[list[Record], int]:
    file = StateFile(path, job)
    file.close()
    return file.records, file.dropped


def test_records_are_there_again(path: Path) -> None:
    written(path)
    assert read(path) == (RECORDS, 0)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_cut_short_anywhere_has_the_whole_records_before(path: Path) -> None:
    ends = [len(written(path.with_name(f"s{n}"), RECORDS[:n])) for n in range(len(RECORDS) + 1)]
    data = written(path)
    for length in range(len(data) + 1):
        path.write_bytes(data[:length])
        n = sum(end <= length for end in ends[1:])
        records, dropped = read(path)
        assert records == RECORDS[:n]
        assert dropped == length - (ends[n] if length >= ends[0] else 0)
        # What is appended now comes after the whole records.
        file = StateFile(path, "job")
        file.append(RECORDS[-1])
        file.close()
        assert read(path) == ([*RECORDS[:n], RECORDS[-1]], 0)


def test_a_last_record_of_which_not_all_blocks_arrived_is_dropped(path: Path) -> None:
    data = bytearray(written(path))
    data[-2:] = b"\0\0"
    path.write_bytes(data)
    assert read(path)[0] == RECORDS[:-1]


def test_damage_before_the_end_is_refused(path: Path) -> None:
    data = bytearray(written(path))
    data[60] ^= 1
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="is damaged at byte"):
        read(path)
    assert path.read_bytes() == data, "it is left as it was"


def test_another_jobs_file_is_refused(path: Path) -> None:
    data = written(path)
    with pytest.raises(ConfigError, match='is of job "job"; this is the coordinator of "mine"'):
        read(path, "mine")
    assert path.read_bytes() == data


@pytest.mark.parametrize("content", [b"something else, and longer than the line of the format\n", b"x"])
def test_other_files_are_not_touched(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="is no state file"):
        read(path)
    assert path.read_bytes() == content


def test_a_file_that_others_can_read_a_link_and_a_folder_are_refused(path: Path, tmp_path: Path) -> None:
    written(path)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=f"chmod 600 {path}"):
        read(path)
    path.chmod(0o600)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(SoftsError, match=str(link)):
        read(link)
    with pytest.raises(SoftsError, match=str(tmp_path)):
        read(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigError, match="no plain file"):
        read(tmp_path / "pipe")


def test_a_second_coordinator_is_refused_and_told_which_process_has_the_file(path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        with pytest.raises(ConfigError, match=f"in use by another coordinator, process {holder.pid};"):
            read(path)
        holder.kill()
    assert read(path) == ([], 0)


def test_compacting_keeps_the_lock_and_the_meaning(path: Path) -> None:
    file = StateFile(path, "job")
    for record in RECORDS:
        file.append(record)
    tries: list[str] = []
    has_ended = threading.Event()

    def intrude() -> None:
        while not has_ended.is_set():
            try:
                read(path)
                tries.append("got it")
            except ConfigError as error:
                tries.append(re.sub("(, process .*)?;.*", "", str(error)))

    intruder = threading.Thread(target=intrude)
    intruder.start()
    while len(tries) < 200:
        file.compact(RECORDS[-2:])
    has_ended.set()
    intruder.join()
    assert set(tries) == {f"state file {path} is in use by another coordinator"}
    file.append(RECORDS[0])
    file.close()
    assert read(path) == ([*RECORDS[-2:], RECORDS[0]], 0)
    assert os.listdir(path.parent) == [path.name]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_replaced_while_it_is_locked_is_not_taken(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, flock = StateFile(path, "job"), fcntl.flock
    waits = iter([True])

    def late(fd: int, operation: int) -> None:
        # The file that was opened is another one by now, and not locked any more.
        if next(waits, False):
            owner.compact(RECORDS)
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(ConfigError, match="in use by another coordinator"):
        read(path)
    monkeypatch.undo()
    owner.close()
    assert read(path) == (RECORDS, 0)


def test_a_half_written_replacement_is_not_used(path: Path) -> None:
    written(path)
    path.with_name("state.new").write_bytes(b"half")
    file = StateFile(path, "job")
    assert file.records == RECORDS
    file.compact(RECORDS[:1])
    file.close()
    assert read(path) == (RECORDS[:1], 0)


def test_it_asks_to_be_compacted(path: Path) -> None:
    file = StateFile(path, "job")
    big = Completed(1, 1, "p" * 4000)
    while not file.needs_compacting:
        file.append(big)
    assert path.stat().st_size > 256 << 10
    file.compact(RECORDS)
    assert not file.needs_compacting
    file.close()
    assert path.stat().st_size < 1000


def test_a_full_disk_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = StateFile(path, "job")

    def full(fd: int, data: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(SoftsError, match="No space left on device"):
        file.append(RECORDS[0])
    monkeypatch.undo()
    file.close()
