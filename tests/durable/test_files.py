"""Files and folders that are whole or absent, and files that only their user may read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import pytest

from softs_fast.durable import private_folder, publish_folder, read_private, write_file
from softs_fast.errors import ConfigError


def test_a_file_is_replaced_and_only_its_user_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o644)
    write_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    write_file(path, lambda file: file.write(b"newer"))
    assert read_private(path, most_bytes=5, what="file") == b"newer"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("broken", ["write", "fsync", "replace"])
def test_after_a_failure_the_old_file_is_there_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    path = tmp_path / "file"
    write_file(path, b"old")

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    def write(file: BinaryIO) -> None:
        file.write(b"half")
        if broken == "write":
            try:
                full()
            except OSError as error:
                raise RuntimeError("as torch.save says it") from error

    if broken != "write":
        monkeypatch.setattr(os, broken, full)
    with pytest.raises(OSError, match="No space left"):
        write_file(path, write)
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_that_others_can_read_a_link_a_pipe_and_a_long_file_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    write_file(path, b"secret")
    with pytest.raises(ConfigError, match="too long: expected at most 5 bytes"):
        read_private(path, most_bytes=5, what="token")
    (tmp_path / "link").symlink_to(path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    for other in ("link", "pipe", "."):
        with pytest.raises(ConfigError, match="must be a plain file"):
            read_private(tmp_path / other, most_bytes=9, what="token")
    for mode, group in ((0o640, False), (0o644, True), (0o660, True)):
        path.chmod(mode)
        with pytest.raises(ConfigError, match="mode 0600"):
            read_private(path, most_bytes=9, what="token", group=group)
    path.chmod(0o640)
    own, found = os.getuid(), os.fstat

    def read_by(user: int, owner: int) -> bytes:
        with monkeypatch.context() as patched:
            patched.setattr(os, "getuid", lambda: user)
            patched.setattr(
                os, "fstat", lambda one: os.stat_result((*found(one)[:4], owner, *found(one)[5:]))
            )
            return read_private(path, most_bytes=9, what="token", group=True)

    # Of root, as of a secret that is mounted.
    assert read_by(own + 1, owner=0) == b"secret"
    for owner in (own + 1, own + 2):
        with pytest.raises(ConfigError, match=f"mode 0600, got -rw-r----- of user {owner}"):
            read_by(own + 1, owner)
    with pytest.raises(FileNotFoundError):
        read_private(tmp_path / "none", most_bytes=9, what="token")


def test_a_private_folder_is_made_or_checked(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    private_folder(path, "folder")
    private_folder(path, "folder")
    assert path.stat().st_mode & 0o777 == 0o700
    path.chmod(0o750)
    with pytest.raises(ConfigError, match=f"chmod 700 {path}"):
        private_folder(path, "folder")


def test_a_folder_gets_its_name_after_all_of_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial, final = tmp_path / ".save", tmp_path / "save"
    (partial / "deep").mkdir(parents=True)
    (partial / "deep" / "file").write_bytes(b"1")
    synced: list[tuple[str, bool]] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{fd}"), final.exists()))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    publish_folder(partial, final)
    before = {(str(path), False) for path in (partial, partial / "deep", partial / "deep" / "file")}
    assert {*synced} == before | {(str(tmp_path), True)}
    partial.mkdir()
    with pytest.raises(OSError, match="not empty"):
        publish_folder(partial, final)
