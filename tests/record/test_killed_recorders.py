"""A recorder that is killed: every closed shard is whole, and the open one can be read to its last complete block."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from crashing import Crash, crashing
from recordings import PLAIN, append, check, record, shard_writer
from waiting import Lines, eventually

from softs_fast import ConfigError
from softs_fast.record import Recording
from softs_fast.record.shard_writer import ShardWriter

OPERATIONS = ("open", "pwrite", "fsync", "ftruncate", "rename", "replace", "unlink", "listdir", "pread")
BLOCK, N = 5, 26


def written(writer: ShardWriter, first: int) -> Iterator[int]:
    """Append blocks up to sample `N`, and close; yields how many samples there are after each of these."""
    while first < N:
        end = min(N, first + BLOCK)
        append(writer, range(first, end))
        first = end
        yield first
    writer.close()


def test_a_crash_at_any_operation_loses_no_block_that_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing is lost here that was not synced.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    at, outcomes = 0, []
    while outcomes[-1:] != ["none"]:
        folder = tmp_path / f"crash-{at}"
        folder.mkdir()
        n_before = 0
        writer: ShardWriter | None = None
        with crashing(at, OPERATIONS, monkeypatch) as arm:
            arm()
            try:
                writer = shard_writer(folder)
                for n_before in written(writer, 0):  # noqa: B007, it is used below
                    pass
                outcomes.append("none")
            except Crash:
                outcomes.append("crash")
        if writer is not None:
            writer.abandon()
        n_after = 0
        # Before the first block there may be no recording.
        with suppress(*[ConfigError] * (n_before == 0)), Recording(folder, verify=True) as recording:
            n_after = len(recording)
        # A block that is written twice over two shards may be there in part.
        assert n_before <= n_after <= n_before + BLOCK
        if n_after:
            check(folder, range(n_after))
        for _ in written(shard_writer(folder), n_after):
            pass
        check(folder, range(N))
        assert not [name for name in os.listdir(folder) if not name.endswith((".safetensors", ".json"))]
        at += 1
    assert len(outcomes) > 70


def test_a_closed_shard_is_on_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[int] = set()
    are_synced: list[bool] = []
    fsync, pwrite, rename = os.fsync, os.pwrite, os.rename

    def noted_pwrite(descriptor: int, data: memoryview, offset: int) -> int:
        synced.discard(os.fstat(descriptor).st_ino)
        return pwrite(descriptor, data, offset)

    def noted_fsync(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    def noted_rename(old: Path, new: Path) -> None:
        journal = Path(old).with_suffix(".rows")
        are_synced.append(synced >= {Path(old).stat().st_ino, journal.stat().st_ino})
        rename(old, new)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "pwrite", noted_pwrite)
    monkeypatch.setattr(os, "rename", noted_rename)
    for _ in written(shard_writer(tmp_path), 0):
        pass
    assert are_synced == [True] * 3


def test_the_header_of_an_open_shard_is_on_disk_before_its_first_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[int, int]] = []
    fsync = os.fsync

    def noted_fsync(descriptor: int) -> None:
        fsync(descriptor)
        if not (journal := tmp_path / "shard-000000.rows").exists() or not journal.stat().st_size:
            synced.append((os.fstat(descriptor).st_ino, os.fstat(descriptor).st_size))

    monkeypatch.setattr(os, "fsync", noted_fsync)
    writer = shard_writer(tmp_path)
    append(writer, range(3))
    found = (tmp_path / "shard-000000.open").stat()
    assert (found.st_ino, found.st_size) in synced
    writer.abandon()


PROGRAM = """
import sys, itertools, numpy as np
from pathlib import Path
from softs_fast import BatchConfig
from softs_fast.record import Recorder, RecordOptions

config = BatchConfig.from_dict(eval(sys.argv[2]))
writer = Recorder(RecordOptions(sys.argv[1], shard_bytes=1 << 20), "p", config, ordered=True)
print("begun", flush=True)
for first in itertools.count(0, 1000):
    y = np.arange(first, first + 1000)
    writer.record("p", first, {"y": y, "x": np.repeat(y[:, None], 3, 1).astype(np.float32)})
"""


def test_a_process_that_is_killed_while_it_records(tmp_path: Path) -> None:
    process = Lines(["-c", PROGRAM, str(tmp_path), repr(PLAIN.to_dict())])
    try:
        process.match("begun")

        def n_seen() -> int:
            with Recording(tmp_path) as recording:
                return len(recording)

        seen = eventually(lambda: (n := n_seen()) > 500_000 and n, "some shards", watched=process)
    finally:
        process.kill()
    with Recording(tmp_path, verify=True) as recording:
        n = len(recording)
        assert n >= seen
        assert isinstance(recording.numbers, range)
    check(tmp_path, range(n))
    record(tmp_path, range(n, n + 100), shard_bytes=1 << 20)
    check(tmp_path, range(n + 100))
