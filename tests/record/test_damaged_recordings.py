"""Damage at each kind of place is named, and never makes a recording shorter."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from recordings import PLAIN, append, check, cut, edit, flip, record, recorder, shard_writer

from softs_fast import BatchConfig, ConfigError, DamagedError, TensorSpec
from softs_fast.record import Recording
from softs_fast.record import shard_writer as shard_writer_module

SHARD = "shard-000001.safetensors"


def swap(folder: Path) -> None:
    """Exchange two shards of one length."""
    one, other = folder / "shard-000000.safetensors", folder / SHARD
    one.rename(folder / "x")
    other.rename(one)
    (folder / "x").rename(other)


def foreign(folder: Path) -> None:
    """Replace a shard by that of another recording of the same samples."""
    record(folder.parent / "other", range(100))
    shutil.copy(folder.parent / "other" / SHARD, folder)


def older(folder: Path) -> None:
    """Restore an earlier manifest."""
    edit(folder, lambda facts: facts["shards"].pop())


def all_read(folder: Path) -> None:
    """Read everything."""
    with Recording(folder) as recording:
        recording.batch(range(100))
        recording.verify()


MANIFEST: list[tuple[Callable[[Path], object], str]] = [
    (lambda f: (f / "stream.json").unlink(), "has shards of a recording, but its stream.json is missing"),
    (lambda f: cut(f / "stream.json"), "stream.json is damaged: stream.json .* bytes"),
    (lambda f: (f / "stream.json").write_bytes(b"\0" * 100), "stream.json is damaged"),
    (lambda f: edit(f, lambda x: x.pop("product")), "stream.json is damaged: .*product"),
    (lambda f: edit(f, lambda x: x.update(format=2)), "has format 2, expected 1: another version"),
    (lambda f: edit(f, lambda x: x["shards"].pop(0)), "shard 0 is 'shard-000001.safetensors', expected"),
    (older, "has shard-000002.safetensors, and its stream.json lists 2 shards: that file is from an earlier"),
]
SHARDS: list[tuple[Callable[[Path], object], str]] = [
    (lambda f: edit(f, lambda x: x["shards"][1]["tensors"].pop("x")), "shard 1 lacks tensor 'x'"),
    (
        lambda f: (f / SHARD).unlink(),
        "lacks shards of its stream.json: shard-000001.safetensors; restore them",
    ),
    (lambda f: cut(f / SHARD), r"shard-000001.safetensors has [\d,]+ of [\d,]+ bytes"),
    (lambda f: flip(f / SHARD, 3), "the header of .*000001.safetensors was altered"),
    (lambda f: flip(f / SHARD, 60), "000001.safetensors is a file of something else: its header has"),
    (lambda f: flip(f / SHARD, 300), "000001.safetensors (was altered|is a file of something else)"),
    (swap, "is a file of something else: its header has '1' as 'shard', expected '0'"),
    (foreign, "is a file of something else: its header has .* as 'recording', expected"),
    (lambda f: flip(f / SHARD, (f / SHARD).stat().st_size - 1), 'tensor "x" of .*000001.* was altered'),
    (lambda f: flip(f / SHARD, (f / SHARD).stat().st_size - 12 * 35 - 1), 'tensor "y" of .*000001.* was alt'),
]


@pytest.mark.parametrize(("damage", "text"), [*MANIFEST, *SHARDS], ids=range(len(MANIFEST) + len(SHARDS)))
def test_damage_of_a_closed_recording(tmp_path: Path, damage: Callable[[Path], object], text: str) -> None:
    folder = tmp_path / "recording"
    record(folder, range(100))
    all_read(folder)
    damage(folder)
    with pytest.raises(ConfigError, match=text):
        all_read(folder)
    if (damage, text) in MANIFEST:
        with pytest.raises(ConfigError, match=text):
            recorder(folder)


def half_written(folder: Path) -> None:
    """Leave a recording of which a shard of 20 samples is open: two blocks."""
    folder.mkdir()
    writer = shard_writer(folder, shard_bytes=10_000)
    append(writer, range(10))
    append(writer, range(10, 20))
    writer.abandon()


OPEN, ROWS = "shard-000000.open", "shard-000000.rows"


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda f: (f / ROWS).unlink(), "its journal shard-000000.rows is missing"),
        (lambda f: flip(f / ROWS, 3), r"shard-000000.rows is damaged at byte 0 of \d+"),
        (lambda f: cut(f / OPEN), r"shard-000000.open has [\d,]+ of [\d,]+ bytes"),
        (lambda f: flip(f / OPEN, 300), "000000.open (was altered|is a file of something else)"),
    ],
)
def test_damage_of_an_open_shard(tmp_path: Path, damage: Callable[[Path], object], text: str) -> None:
    half_written(folder := tmp_path / "recording")
    damage(folder)
    for opened in (Recording, recorder):
        with pytest.raises(DamagedError, match=text):
            opened(folder)


def test_a_block_that_was_cut_short_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    half_written(folder := tmp_path / "recording")
    check(folder, range(20))
    # Its bytes were not on disk when the power failed.
    flip(folder / OPEN, (folder / OPEN).read_bytes().index(b"\x00\x00\x98\x41") + 2)  # 19.0
    check(folder, range(10))
    assert "has lost its last 10 samples, which were not on disk yet" in caplog.text
    # Its journal was not.
    cut(folder / ROWS)
    caplog.clear()
    check(folder, range(10))
    assert not caplog.records
    record(folder, range(10, 30))
    check(folder, range(30))


def test_the_end_of_a_journal_that_was_not_on_disk_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    half_written(folder := tmp_path / "recording")
    line = (folder / ROWS).stat().st_size // 2
    os.truncate(folder / ROWS, line)
    os.truncate(folder / ROWS, 3 * line)
    check(folder, range(10))
    assert "shard-000000.rows has lost its last 2 lines, which were not on disk yet" in caplog.text
    record(folder, range(10, 30))
    check(folder, range(30))


def test_a_crash_after_a_shard_that_had_lost_its_last_block_was_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_written(folder := tmp_path / "recording")
    flip(folder / OPEN, (folder / OPEN).read_bytes().index(b"\x00\x00\x98\x41") + 2)  # 19.0

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(shard_writer_module, "write_manifest", fail)
        with pytest.raises(ConfigError, match="No space left on device"):
            recorder(folder)
    assert (folder / "shard-000000.safetensors").exists()
    check(folder, range(10))
    record(folder, range(10, 30))
    check(folder, range(30))


def test_a_link_in_a_folder_is_not_written_through(tmp_path: Path) -> None:
    half_written(folder := tmp_path / "recording")
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (folder / "shard-000000.new").symlink_to(victim)
    record(folder, range(20, 30))
    check(folder, range(30))
    assert victim.read_text() == "precious"


def test_an_open_shard_that_is_a_link_is_refused(tmp_path: Path) -> None:
    half_written(folder := tmp_path / "recording")
    (folder / OPEN).rename(tmp_path / OPEN)
    (folder / OPEN).symlink_to(tmp_path / OPEN)
    with pytest.raises(ConfigError, match=f"must be a plain file, got l.* at .*{OPEN}"):
        recorder(folder)


def test_a_file_that_is_cut_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    record(tmp_path, range(100))
    with Recording(tmp_path) as recording:
        recording.batch(range(100))
        os.truncate(tmp_path / SHARD, 500)
        with pytest.raises(DamagedError, match=r"shard-000001.safetensors was cut while it was read"):
            recording.batch(range(100))


def test_a_disk_that_fails_is_an_error_that_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> int:
        raise OSError(5, "Input/output error")

    record(tmp_path, range(100))
    with Recording(tmp_path) as recording:
        monkeypatch.setattr(os, "preadv", fail)
        with pytest.raises(OSError, match=r"Input/output error: .*shard-000000.safetensors"):
            recording.batch([3])


def test_folders_that_are_no_recordings(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigError, match=r"is not a recording: it has no stream.json"):
            Recording(folder)
    # Of more ranks than fit into memory.
    (tmp_path / "rank-0-of-9999999999").mkdir()
    with pytest.raises(DamagedError, match="lacks the recording of rank 1 of 9999999999"):
        Recording(tmp_path)
    record(tmp_path / "one", range(10))
    (tmp_path / "one" / "rank-00000-of-00002").mkdir()
    with pytest.raises(ConfigError, match="has recordings of 1 and 2 ranks; move one of them to another"):
        Recording(tmp_path / "one")


def test_another_config_is_refused_by_its_first_difference(tmp_path: Path) -> None:
    record(tmp_path, range(10))
    other = BatchConfig([PLAIN.specs[0], TensorSpec("x", (4,), "float32")])
    with pytest.raises(ConfigError, match=r'tensor "x" has shape \(3,\) in the recording, and \(4,\) here'):
        Recording(tmp_path, batch_config=other)
