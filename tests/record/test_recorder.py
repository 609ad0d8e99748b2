"""What is handed to a recorder is what is read: all kinds of tensors, any sizes, policies, folders that are continued."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from recordings import KINDS, PLAIN, check, equal, kinds, plain, record, recorder
from waiting import WATCHDOG_S, eventually

from softs_fast import BatchConfig, ConfigError, RecordOptions, SoftsError, TensorSpec
from softs_fast.record import Recording
from softs_fast.record.columns import columns_of
from softs_fast.record.shard_writer import ShardWriter


@pytest.mark.parametrize("shard_bytes", [1, 3000, 1 << 20])
def test_tensors_of_all_kinds_are_the_same_to_the_bit(tmp_path: Path, shard_bytes: int) -> None:
    record(tmp_path, range(30), batch_size=7, make=kinds, config=KINDS, shard_bytes=shard_bytes)
    with Recording(tmp_path, batch_config=KINDS, verify=True) as recording:
        assert equal(recording.batch(range(30)), kinds(range(30)))
        some = [5, 6, 7, 29, 0, 20, 19]
        assert equal(recording.batch(some), kinds(some))
        # What is served again is decoded already, but for the largest logits.
        codecs = {spec.name: spec.codec for spec in recording.config.specs if spec.codec}
    assert codecs == {"top": "topk:3"}


def test_files_of_safetensors_that_others_can_read(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    record(tmp_path, range(100), make=kinds, config=KINDS, shard_bytes=1 << 20)
    assert sorted(os.listdir(tmp_path)) == [".lock", "shard-000000.safetensors", "stream.json"]
    found = safetensors.load_file(tmp_path / "shard-000000.safetensors")
    expected = kinds(range(100))
    for name in ("flag", "half", "tiny", "cast", "scaled", "none", "y"):
        assert equal(found[name], expected[name]), name
    assert found["sequence"].tolist() == list(range(100))
    assert equal(found["top.values"], expected["top"].values)
    assert equal(found["states.values"], expected["states"].values)
    starts = [0, *expected["states"].lengths.cumsum(0).tolist()]
    assert found["states.offsets"].tolist() == starts


def test_the_memory_of_a_batch_may_be_changed_at_once(tmp_path: Path) -> None:
    writer = recorder(tmp_path)
    for i in range(10):
        batch = plain(range(i, i + 1))
        writer.record("p", i, batch)
        batch["y"].fill_(-1)
    writer.close()
    check(tmp_path, range(10))


def test_small_samples_take_little_more_than_their_bytes(tmp_path: Path) -> None:
    config = BatchConfig([TensorSpec("x", (16,), "float32")])
    zeros = {"x": torch.zeros(100_000, 16)}
    writer = recorder(tmp_path, config=config, shard_bytes=1 << 20)
    writer.record("p", 0, zeros)
    writer.close()
    n_bytes = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert n_bytes < 1.2 * 64 * 100_000


def test_a_block_that_is_not_full_is_written_soon(tmp_path: Path) -> None:
    writer = recorder(tmp_path)
    writer.record("p", 0, plain(range(3)))

    def n_read() -> int:
        with Recording(tmp_path) as recording:
            return len(recording)

    assert eventually(n_read, "the samples of a loader that waits") == 3
    writer.record("p", 3, plain(range(3, 5)))
    writer.close()
    check(tmp_path, range(5))


def test_a_recording_is_continued_and_has_each_number_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record(tmp_path, range(20))
    # As after a start from an earlier checkpoint.
    record(tmp_path, range(10, 50))
    check(tmp_path, range(50))
    assert not caplog.records
    record(tmp_path, range(60, 100))
    assert "lacks 10 samples before number 60" in caplog.text
    check(tmp_path, [*range(50), *range(60, 100)])
    with Recording(tmp_path) as recording, pytest.raises(SoftsError, match="number 50 is the first"):
        _ = recording.span


def test_samples_without_an_order_are_numbered_as_they_come(tmp_path: Path) -> None:
    for _ in range(2):
        writer = recorder(tmp_path, ordered=False)
        writer.record("p", 0, plain([9, 3]))
        writer.record("p", 0, plain([5]))
        writer.close()
    with Recording(tmp_path) as recording:
        assert equal(recording.batch(range(6)), plain([9, 3, 5, 9, 3, 5]))


def held_up(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Have writers wait for an event before each block."""
    event, append = threading.Event(), ShardWriter.append

    def wait(self: ShardWriter, rows: Any) -> None:
        assert event.wait(WATCHDOG_S)
        append(self, rows)

    monkeypatch.setattr(ShardWriter, "append", wait)
    return event


@pytest.mark.parametrize("policy", ["wait", "drop"])
def test_a_disk_that_is_too_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Any) -> None:
    """The buffer has three blocks, of a sample each."""
    event = held_up(monkeypatch)
    config = BatchConfig([TensorSpec("x", (1 << 20,), "float32")])
    writer = recorder(tmp_path, config=config, policy=policy, shard_bytes=9 << 20, buffer_bytes=1)

    def fill() -> None:
        for i in range(5):
            writer.record("p", i, {"x": torch.full((1, 1 << 20), float(i))})

    if policy == "drop":
        fill()
        assert writer.n_dropped == 2
        event.set()
    else:
        filler = threading.Thread(target=fill)
        filler.start()
        event.set()
        filler.join(WATCHDOG_S)
    writer.close()
    n = 5 if policy == "wait" else 3
    with Recording(tmp_path, verify=True) as recording:
        assert recording.batch(range(n))["x"][:, -1].tolist() == list(range(n))
        assert (len(recording), recording.n_dropped) == (n, 5 - n)


def test_a_batch_for_which_there_is_never_room_is_refused(tmp_path: Path) -> None:
    config = BatchConfig([TensorSpec("x", (1 << 20,), "float32")])
    writer = recorder(tmp_path, config=config, policy="drop", buffer_bytes=1)
    with pytest.raises(ConfigError, match="buffer_bytes has room for 3 samples, expected at least 4"):
        writer.record("p", 0, {"x": torch.zeros(4, 1 << 20)})
    writer.close()


@pytest.mark.parametrize("policy", ["wait", "drop"])
def test_a_full_disk_is_named_and_what_was_recorded_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, policy: Any
) -> None:
    append, pwrite = ShardWriter.append, os.pwrite

    def full(fd: int, data: memoryview, offset: int) -> int:
        if offset > 600:
            raise OSError(28, "No space left on device")
        return pwrite(fd, data[:5], offset)  # short, as before a disk is full

    def one(self: ShardWriter, rows: Any) -> None:
        append(self, rows)
        monkeypatch.setattr(os, "pwrite", full)

    monkeypatch.setattr(ShardWriter, "append", one)
    writer = recorder(tmp_path, policy=policy)
    writer.record("p", 0, plain(range(10)))
    eventually(lambda: os.pwrite is full, "the first block")
    writer.record("p", 10, plain(range(10, 20)))
    text = (
        "recording .* ends after 10 samples: No space left on device; they can be read: make room, or use another folder; "
        "10 samples that were in memory are lost, number 10 is the first"
    )
    eventually(lambda: caplog.records, "the failure")
    if policy == "wait":
        with pytest.raises(SoftsError, match=text):
            writer.record("p", 20, plain(range(20, 30)))
    else:
        writer.record("p", 20, plain(range(20, 30)))
        assert writer.n_dropped == 20
    writer.close()
    monkeypatch.undo()
    assert "No space left on device" in caplog.text
    check(tmp_path, range(10))
    with Recording(tmp_path) as recording:
        assert recording.n_dropped == (20 if policy == "drop" else 0)
    record(tmp_path, range(10, 40))
    check(tmp_path, range(40))


def test_what_fails_at_the_end_is_raised_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: ShardWriter) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(ShardWriter, "close", fail)
    writer = recorder(tmp_path)
    writer.record("p", 0, plain(range(10)))
    with pytest.raises(SoftsError, match="ends after 10 samples: Input/output error"):
        writer.close()
    check(tmp_path, range(10))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"product": "q"}, "has product='p', expected 'q', as this loader has"),
        ({"ordered": False}, "has ordered=True, expected False"),
        (
            {"config": BatchConfig([TensorSpec("y", (), "int32"), PLAIN.specs[1]])},
            "tensor \"y\" has dtype 'int64' in the recording, and 'int32' here",
        ),
        ({"config": BatchConfig(PLAIN.specs[:1])}, 'tensor "x" is only in the recording'),
        (
            {"config": BatchConfig([*PLAIN.specs, TensorSpec("z", (), "bool")])},
            'tensor "z" is not in the recording',
        ),
        (
            {"config": BatchConfig(PLAIN.specs[::-1])},
            "tensor \"y\" has name 'y' in the recording, and 'x' here",
        ),
    ],
)
def test_a_recording_of_something_else_is_not_continued(tmp_path: Path, options: Any, text: str) -> None:
    record(tmp_path, range(10))
    with pytest.raises(ConfigError, match=text):
        recorder(tmp_path, **options)
    check(tmp_path, range(10))


def test_a_folder_that_is_in_use_or_cannot_be_written(tmp_path: Path) -> None:
    writer = recorder(tmp_path / "a")
    with pytest.raises(ConfigError, match=r"recording .*a is in use by this process"):
        recorder(tmp_path / "a")
    writer.close()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"recording .*file/b cannot be written: .*Not a directory"):
        recorder(tmp_path / "file" / "b")


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 4)])
def test_a_recording_of_another_number_of_ranks_is_not_hidden(
    tmp_path: Path, before: int, after: int
) -> None:
    for rank in range(before):
        record(tmp_path, range(rank, 20, before), rank=rank, world_size=before)
    with pytest.raises(
        ConfigError, match=f"has a recording of world_size={before}, and this loader has world_size={after}"
    ):
        recorder(tmp_path, world_size=after)
    check(tmp_path, range(20))


def test_folders_are_for_their_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    record(folder, range(0, 10, 2), world_size=2)
    for one in (folder, folder / "rank-00000-of-00002"):
        assert one.stat().st_mode & 0o777 == 0o700


def test_what_cannot_be_recorded_is_refused(tmp_path: Path) -> None:
    writer = recorder(tmp_path)
    with pytest.raises(ConfigError, match="is of product 'p', and the loader went to 'q'"):
        writer.record("q", 0, plain(range(2)))
    with pytest.raises(ConfigError, match=r"must map the names \['y', 'x'\] to tensors, got list"):
        writer.record("p", 0, [1, 2])
    with pytest.raises(ConfigError, match="Dtype mismatch"):
        writer.record("p", 0, {"y": torch.zeros(2), "x": torch.zeros(2, 3)})
    writer.close()
    writer.close()
    with pytest.raises(SoftsError, match="is closed"):
        writer.record("p", 0, plain(range(2)))
    for spec, text in (
        (TensorSpec("sequence", (), "int64"), 'a tensor named "sequence" cannot be recorded'),
        (TensorSpec("z", (2, 0), "int8", ragged=True), 'tensor "z" is ragged and has no elements'),
    ):
        with pytest.raises(ConfigError, match=text):
            columns_of(BatchConfig([spec]))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"folder": ""}, "record must be the path of a folder"),
        ({"folder": "s3://a"}, "record needs a folder of this host, got 's3://a'; copy the recording"),
        ({"folder": "a", "policy": "never"}, 'policy must be "wait" or "drop"'),
        ({"folder": "a", "shard_bytes": 0}, "shard_bytes must be a whole number from 1"),
    ],
)
def test_options_are_checked(options: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        RecordOptions(**options)


def test_a_recorder_that_is_not_closed_is_written_when_it_goes(tmp_path: Path) -> None:
    logging.getLogger("softs_fast.record").setLevel(logging.NOTSET)
    writer = recorder(tmp_path)
    writer.record("p", 0, plain(range(5)))
    del writer
    check(tmp_path, range(5))
