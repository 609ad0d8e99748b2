"""State files: whole or not there, private, and of the right run."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from raw_client import job_of

from softs_fast.durable import write_sealed
from softs_fast.errors import ConfigError
from softs_fast.paramserver.rounds.leases import LeaseRecord, Range
from softs_fast.paramserver.rounds.snapshot import MemberRecord, Snapshot
from softs_fast.paramserver.server.training import state_file
from softs_fast.paramserver.server.training.state_file import (
    Saved,
    before_path,
    load_state,
    new_state,
    save_state,
)
from softs_fast.paramserver.server.training.trainer import Trainer

SNAPSHOT = Snapshot(
    timeline=3,
    version=7,
    has_opened=True,
    samples=99,
    members=(MemberRecord("id", "name", 1, 4),),
    leases=LeaseRecord(2, (Range(2, 0, 10), Range(2, 12, 20))),
    banned=("x",),
)


def saved() -> Saved:
    new = new_state()
    return Saved(new.job, new.secret, new.owner, SNAPSHOT, Trainer(job_of()).state(), (0.5, 2))


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "s"
    assert load_state(path) is None
    given = saved()
    save_state(path, given)
    found = load_state(path)
    assert found is not None
    assert (found.job, found.secret, found.owner) == (given.job, given.secret, given.owner)
    assert found.snapshot == SNAPSHOT
    assert found.best == (0.5, 2)
    assert found.trainer is not None
    assert Trainer(job_of(), found.trainer).state().keys() == found.trainer.keys()
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["s"]


def test_a_state_with_code_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "s"
    write_sealed(path, "paramserver", lambda file: torch.save({"snapshot": Path}, file))
    with pytest.raises(ConfigError, match="cannot be read as a state"):
        load_state(path)


def two_states(path: Path) -> None:
    for version in (7, 8):
        save_state(path, replace(saved(), snapshot=replace(SNAPSHOT, version=version)))


@pytest.mark.parametrize("kind", ["altered", "cut", "emptied", "missing"])
def test_the_newest_whole_state_is_used_and_people_are_told(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "s"
    two_states(path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    if kind == "missing":
        path.unlink()
    else:
        path.write_bytes({"altered": data, "cut": data[:-1], "emptied": b""}[kind])
    found = load_state(path)
    assert found is not None
    assert found.snapshot is not None
    assert found.snapshot.version == 7
    assert str(path) in found.trouble
    assert str(before_path(path)) in found.trouble
    # The next ones are written beside the whole one, which stays until a newer one is whole.
    save_state(path, replace(saved(), snapshot=replace(SNAPSHOT, version=9)))
    assert load_state(path).snapshot.version == 9  # type: ignore[union-attr]
    path.unlink()
    assert load_state(path).snapshot.version == 7  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["a link", "no descriptors"])
def test_a_state_that_may_be_whole_is_never_replaced_by_an_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = tmp_path / "s"
    two_states(path)
    if kind == "a link":
        path.rename(tmp_path / "moved")
        path.symlink_to(tmp_path / "moved")
    else:

        def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(state_file, "read_sealed", refuse)
    with pytest.raises(ConfigError, match=f"file {path} must be a plain|cannot read {path}: Too many"):
        load_state(path)
    assert path.exists()


def test_a_state_that_arrives_while_it_is_read_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that runs replaces its file in two steps: what was missing at first is whole, not damaged."""
    path, aside, read = tmp_path / "s", tmp_path / "aside", state_file._read
    two_states(path)
    path.rename(aside)

    def late(one: Path) -> Saved:
        if aside.exists():
            aside.rename(path)
            raise FileNotFoundError
        return read(one)

    monkeypatch.setattr(state_file, "_read", late)
    assert load_state(path) is not None
    assert path.exists()
    assert not path.with_name("s.damaged").exists()


def test_states_that_are_both_altered_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "s"
    two_states(path)
    for one in (path, before_path(path)):
        data = bytearray(one.read_bytes())
        data[-1] ^= 1
        one.write_bytes(data)
    with pytest.raises(
        ConfigError, match=rf"state file {path} is damaged.*state file {before_path(path)} is damaged"
    ):
        load_state(path)
    assert path.exists()
