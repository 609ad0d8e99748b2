"""Sealed files, and the record of a folder: what was cut, altered or lost is refused by name."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from softs_fast.durable import MANIFEST, facts_of, read_sealed, verify_manifest, write_manifest, write_sealed
from softs_fast.durable.sealed import Writable
from softs_fast.errors import ConfigError, DamagedError

FILES = {"a": b"first" * 3, "deep/b": bytes(300), "deep/er/c \u00e9\n": b"", "d": b"1"}


@pytest.fixture
def save(tmp_path: Path) -> Path:
    folder = tmp_path / "save"
    for name, data in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    os.mkdir(os.fsencode(folder) + b"/\xff")
    (folder / os.fsdecode(b"\xff/\xfe")).write_bytes(b"a name that is not UTF-8")
    (folder / "deep" / MANIFEST).write_bytes(b"a file like others, as it lies deeper")
    write_manifest(folder)
    return folder


def verify(folder: Path) -> frozenset[str]:
    return verify_manifest(folder, "save s")


def test_it_names_each_file(save: Path) -> None:
    names = {*FILES, os.fsdecode(b"\xff/\xfe"), f"deep/{MANIFEST}"}
    assert verify(save) == names
    (save / "later").write_bytes(b"added later, so not vouched for")
    assert verify(save) == names
    write_manifest(save)
    assert verify(save) == names | {"later"}


def test_an_empty_folder_has_a_record_too(tmp_path: Path) -> None:
    with pytest.raises(DamagedError, match="save s has no manifest /"):
        verify(tmp_path)
    write_manifest(tmp_path)
    assert verify(tmp_path) == frozenset()
    with pytest.raises(DamagedError, match=r"save s is missing: .*/none does not exist"):
        verify(tmp_path / "none")


def test_files_that_are_missing_cut_and_altered_are_named(save: Path) -> None:
    data = bytearray(FILES["deep/b"])
    data[77] ^= 4
    (save / "deep/b").write_bytes(data)
    with pytest.raises(
        DamagedError, match="save s is damaged: 'deep/b' was altered; restore it, or use an older one"
    ):
        verify(save)
    (save / "a").write_bytes(FILES["a"][:-1])
    (save / "d").unlink()
    with pytest.raises(
        DamagedError, match="save s is damaged: 'd' is missing, 'a' has 14 of 15 bytes; restore"
    ):
        verify(save)
    for name in FILES:
        (save / name).unlink(missing_ok=True)
    shutil.rmtree(os.fsencode(save) + b"/\xff")
    (save / "d").mkdir()
    with pytest.raises(DamagedError, match="'a' is missing, 'd' is missing"):
        verify(save)


def test_a_single_file_has_its_record_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    with pytest.raises(DamagedError, match="is missing"):
        verify(path)
    path.write_bytes(b"weights")
    with pytest.raises(DamagedError, match=r"save s has no manifest .*/model.pt.manifest"):
        verify(path)
    write_manifest(path)
    assert verify(path) == {"model.pt"}
    path.write_bytes(b"weight.")
    with pytest.raises(DamagedError, match=r"'model.pt' was altered"):
        verify(path)
    path.unlink()
    with pytest.raises(DamagedError, match=r"'model.pt' is missing"):
        verify(path)


def test_processes_share_the_work_and_each_sees_what_is_missing(save: Path) -> None:
    (save / "a").write_bytes(b"x" * len(FILES["a"]))
    outcomes = []
    for number in range(3):
        try:
            outcomes.append(verify_manifest(save, "save s", (number, 3)) is None)
        except DamagedError as error:
            outcomes.append("'a' was altered" in str(error))
    assert sorted(outcomes) == [False, False, True]
    (save / "a").unlink()
    for number in range(3):
        with pytest.raises(DamagedError, match="'a' is missing"):
            verify_manifest(save, "save s", (number, 3))


def test_links_are_not_followed(save: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.move(save / "deep", elsewhere)
    (save / "deep").symlink_to(elsewhere)
    (save / "a").rename(tmp_path / "a")
    (save / "a").symlink_to(tmp_path / "a")
    with pytest.raises(DamagedError, match="'a' is missing, 'deep/b' is missing"):
        verify(save)
    with pytest.raises(ConfigError, match="is lrwxrwxrwx, expected a plain file"):
        write_manifest(save)


def test_every_cut_and_flipped_bit_of_the_record_is_refused(save: Path) -> None:
    data = (save / MANIFEST).read_bytes()
    for length in range(0, len(data), 7):
        (save / MANIFEST).write_bytes(data[:length])
        with pytest.raises(DamagedError, match="manifest of save s"):
            verify(save)
    for bit in range(0, len(data) * 8, 5):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        (save / MANIFEST).write_bytes(flipped)
        with pytest.raises(DamagedError, match="manifest of save s"):
            verify(save)
    for body in (b"[]", b'{"a": 1}', b'{"a": [1, 2, 3]}', b'{"a": ["x", "y"]}', b"\xff"):
        write_sealed(save / MANIFEST, "manifest", body)
        with pytest.raises(DamagedError, match="the manifest of save s is of another version"):
            verify(save)


def read(path: Path) -> bytes:
    return read_sealed(path, "test", most_bytes=100, what="file f")


def test_a_sealed_file_is_whole_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "f"

    def write(file: Writable) -> None:
        file.write(b"con")
        file.flush()
        file.write(memoryview(b"tent"))

    write_sealed(path, "test", write)
    assert read(path) == b"content"
    data = path.read_bytes()
    write_sealed(path, "test", b"content")
    assert path.read_bytes() == data
    assert path.stat().st_mode & 0o777 == 0o600
    for other in [data[:n] for n in range(len(data))] + [data + b"\0"]:
        path.write_bytes(other)
        with pytest.raises(ConfigError, match=r"file f (is damaged|begins with)"):
            read(path)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(ConfigError, match=r"file f (is damaged|begins with)"):
            read(path)


def test_a_sealed_file_of_another_kind_of_others_or_too_long_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_sealed(path, "other", b"")
    with pytest.raises(
        ConfigError, match="begins with 'softs-fast file 1 other', expected 'softs-fast file 1 test'"
    ):
        read(path)
    write_sealed(path, "test", bytes(101))
    with pytest.raises(ConfigError, match="has 101 bytes, expected at most 100"):
        read(path)
    write_sealed(path, "test", b"")
    path.chmod(0o604)
    with pytest.raises(ConfigError, match="mode 0600"):
        read(path)
    assert read_sealed(path, "test", most_bytes=1, what="f", private=False) == b""


def test_a_part_with_a_record_of_its_own_counts_by_that_alone(tmp_path: Path) -> None:
    part = tmp_path / "weights" / "step-1"
    part.mkdir(parents=True)
    (part / "a").write_text("a")
    (tmp_path / "weights" / "b").write_text("b")
    write_manifest(part)
    write_manifest(tmp_path, [part])
    assert verify_manifest(tmp_path, "save s") == {"weights/b", "weights/step-1/manifest"}
    (part / "manifest").write_text("")
    with pytest.raises(DamagedError, match="'weights/step-1/manifest' has 0 of"):
        verify_manifest(tmp_path, "save s")


def test_what_another_process_has_found_of_a_file_is_not_read_again(tmp_path: Path) -> None:
    (tmp_path / "own").write_bytes(b"1")
    (tmp_path / "other").write_bytes(b"2")
    known = facts_of(tmp_path, ["other"])
    with pytest.raises(FileNotFoundError, match="has no gone, which another process has written"):
        write_manifest(tmp_path, known=known | {"gone": (1, "")})
    write_manifest(tmp_path, known=known)
    assert verify_manifest(tmp_path, "it") == {"own", "other"}
    write_manifest(tmp_path, known={"other": [1, "of other bytes"]})
    with pytest.raises(DamagedError, match="'other' was altered"):
        verify_manifest(tmp_path, "it")
