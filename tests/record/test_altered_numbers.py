"""Numbers that cannot be: in the manifest, in a shard, between shards, and between folders."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import numpy as np
import pytest
from recordings import append, check, edit, equal, plain, record, shard_writer

from softs_fast import ConfigError, DamagedError
from softs_fast.record import Recording


@pytest.mark.parametrize(
    ("index", "facts"),
    [
        (1, {"first": 69, "last": 35}),
        (1, {"first": 34}),
        (1, {"last": 68}),
        (1, {"n_samples": 36}),
        (2, {"n_samples": 1 << 47, "last": (1 << 50)}),
    ],
)
def test_a_manifest_with_numbers_that_do_not_fit(tmp_path: Path, index: int, facts: dict[str, int]) -> None:
    record(tmp_path, range(100))
    edit(tmp_path, lambda x: x["shards"][index].update(facts))
    with pytest.raises(DamagedError, match=rf"stream.json is damaged: shard {index} of rank 0 of 1 cannot"):
        Recording(tmp_path)


def test_a_manifest_with_the_numbers_of_another_rank(tmp_path: Path) -> None:
    for rank in (0, 1):
        record(tmp_path, range(rank, 20, 2), rank=rank, world_size=2)
    edit(tmp_path / "rank-00001-of-00002", lambda x: x["shards"][0].update(first=2, last=20))
    with pytest.raises(DamagedError, match=r"shard 0 of rank 1 of 2 cannot have 10 samples with .* 2 to 20"):
        Recording(tmp_path)


def test_a_shard_with_other_numbers_than_the_manifest_says(tmp_path: Path) -> None:
    record(tmp_path, range(100))
    edit(tmp_path, lambda x: x["shards"][2].update(first=1070, last=1099))
    text = r"shard-000002.safetensors has the numbers 70 to 99, and its stream.json says 1070 to 1099"
    with pytest.raises(DamagedError, match=text):
        Recording(tmp_path, verify=True)
    with Recording(tmp_path) as recording, pytest.raises(DamagedError, match=text):
        recording.batch([1070])


def change_numbers(folder: Path, before: list[int], after: list[int]) -> None:
    """Change numbers of the first shard, and their checksum."""
    path = folder / "shard-000000.safetensors"
    old, new = (np.array(numbers, np.uint64).tobytes() for numbers in (before, after))
    data = path.read_bytes()
    assert old in data
    # They are the first tensor.
    path.write_bytes(data.replace(old, new, 1))
    edit(folder, lambda x: x["shards"][0]["tensors"]["sequence"].__setitem__(1, zlib.crc32(new)))


def test_numbers_that_do_not_rise_within_a_shard(tmp_path: Path) -> None:
    text = "shard-000000.safetensors has number 2 after 2, expected numbers that rise in steps of 1"
    record(tmp_path, range(5), shard_bytes=28 * 5)
    change_numbers(tmp_path, [0, 1, 2, 3, 4], [0, 1, 2, 2, 4])
    with pytest.raises(DamagedError, match=text):
        Recording(tmp_path, verify=True)
    # Samples are missing, so the numbers are needed.
    edit(tmp_path, lambda x: x["shards"][0].update(last=5))
    change_numbers(tmp_path, [0, 1, 2, 2, 4], [0, 1, 2, 2, 5])
    with pytest.raises(DamagedError, match=text):
        Recording(tmp_path)


def test_numbers_that_leave_the_steps_of_a_rank(tmp_path: Path) -> None:
    for rank in (0, 1):
        record(tmp_path, range(rank, 10, 2), rank=rank, world_size=2)
    change_numbers(tmp_path / "rank-00000-of-00002", [0, 2, 4, 6, 8], [0, 2, 3, 6, 8])
    with pytest.raises(DamagedError, match="has number 3 after 2, expected numbers that rise in steps of 2"):
        Recording(tmp_path, verify=True)


def test_an_open_shard_with_numbers_that_were_there_before(tmp_path: Path) -> None:
    writer = shard_writer(tmp_path)
    append(writer, range(12))
    append(writer, range(12, 20))
    writer.abandon()
    check(tmp_path, range(20))
    edit(tmp_path, lambda x: x["shards"][0].update(first=1000, last=1011))
    with pytest.raises(DamagedError, match=r"000001.open begins with number 12, expected one after 1011"):
        Recording(tmp_path)


def test_a_live_recording_of_which_the_open_shard_is_closed_meanwhile(tmp_path: Path) -> None:
    writer = shard_writer(tmp_path)
    append(writer, range(5))
    append(writer, range(7, 9))
    there = [*range(5), 7, 8]
    with Recording(tmp_path) as recording, Recording(tmp_path) as used:
        used.batch(there)
        used.close()
        append(writer, range(9, 30))
        for one in (recording, used):
            assert list(one.numbers) == there
            assert equal(one.batch(there), plain(there))
            one.verify()
        with pytest.raises(ConfigError, match="has no sample 9: it has the numbers 0 to 8"):
            recording.batch([9])
        recording.close()
        (tmp_path / "shard-000000.safetensors").unlink()
        with pytest.raises(DamagedError, match=r"lacks shards of its stream.json"):
            recording.batch([0])
    writer.abandon()


def test_a_manifest_that_is_no_plain_file(tmp_path: Path) -> None:
    record(tmp_path, range(10))
    with pytest.raises(ConfigError, match=r"stream.json is not a recording: it has no stream.json"):
        Recording(tmp_path / "stream.json")
    for make, kind in ((os.mkfifo, "p"), (os.mkdir, "d")):
        (tmp_path / "stream.json").rename(tmp_path / f"before-{kind}")
        make(tmp_path / "stream.json")
        with pytest.raises(DamagedError, match=rf"stream.json must be a plain file, got {kind}rw"):
            Recording(tmp_path)
