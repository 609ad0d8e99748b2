"""The folder of a journal: one master, private files, a save that is whole at any moment, a full disk."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from journal_samples import LINES, some_save

from softs_fast.dataflow.journal.folder import JournalFolder
from softs_fast.dataflow.journal.records import CommonSave
from softs_fast.durable import write_manifest
from softs_fast.errors import ConfigError, FlowError
from softs_fast.records import replace


class Killed(BaseException):
    """What ends a process in these tests: nothing handles it."""


def opened(path: Path, lines: tuple[str, ...] = LINES) -> JournalFolder:
    return JournalFolder(path / "j", lines)


def save_of(journal: JournalFolder, step: int) -> CommonSave:
    """Make a save of one file, and have it count."""
    partial = journal.begin(step)
    (partial / "worker-0").mkdir()
    (partial / "worker-0" / "state.pt").write_text(f"state of step {step}")
    (partial / "master.pt").write_text(f"rows of step {step}")
    part = partial / "weights" / "actor" / "step-1"
    part.mkdir(parents=True)
    (part / "0.distcp").write_text(f"weights of step {step}")
    write_manifest(part)
    save = replace(some_save(random.Random(step), journal.name_of(partial)), step=step)
    journal.commit(partial, save)
    return save


def check_whole(path: Path) -> int:
    """Open a journal that a killed process has left; returns the step of its save, 0 if there is none."""
    journal = opened(path)
    try:
        save = journal.last
        folders = {found.name for found in journal.path.iterdir() if found.is_dir()}
        assert not [name for name in folders if not name.startswith(("save-", "damaged-save-"))]
        assert folders >= ({save.name} if save is not None else set())
        if save is None:
            return 0
        assert (journal.path / save.name / "master.pt").read_text() == f"rows of step {save.step}"
        state = journal.path / save.name / "worker-0" / "state.pt"
        assert state.read_text() == f"state of step {save.step}"
        return save.step
    finally:
        journal.close()


def test_the_last_save_is_found_again_and_no_other_one_is_kept(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    assert journal.last is None
    saves = [save_of(journal, step) for step in (2, 4, 6)]
    journal.note_yielded(7)
    journal.note_yielded(5)
    journal.begin(8)
    journal.close()
    journal.close()
    names = {saves[1].name, saves[2].name}
    assert {one.name for one in (tmp_path / "j").glob("save-*")} == names
    again = opened(tmp_path)
    assert again.last == saves[-1]
    assert again.yielded == 7
    again.close()
    assert check_whole(tmp_path) == 6


def test_all_is_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        journal = opened(tmp_path)
        save_of(journal, 1)
        journal.close()
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "j").rglob("*") if path.is_file()}
    folders = [tmp_path / "j", *(path for path in (tmp_path / "j").rglob("*") if path.is_dir())]
    assert modes == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}


def test_a_folder_that_others_can_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "j").mkdir(mode=0o755)
    with pytest.raises(ConfigError, match=r"folder of this user with mode 0700, got drwxr-xr-x .* chmod 700"):
        opened(tmp_path)


def test_two_flows_of_one_process_on_one_journal_are_refused(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for _ in range(2):
        with pytest.raises(ConfigError, match="is in use by this process"):
            opened(tmp_path)
    with pytest.raises(ConfigError, match=f"is in use by process {os.getpid()}"):
        open_elsewhere(tmp_path)
    journal.close()
    opened(tmp_path).close()


def open_elsewhere(path: Path) -> None:
    """Open a journal in another process; raises what that one raised."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            opened(path)
        except ConfigError as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.close(writer)
    assert os.waitpid(child, 0)[1] == 0
    text = os.read(reader, 10_000).decode()
    os.close(reader)
    if text:
        raise ConfigError(text)


def test_a_fork_does_not_hold_the_lock_of_its_parent(tmp_path: Path) -> None:
    """Such as a worker of a DataLoader, which outlives a master that was killed for some seconds."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        # The master: it has a fork, and ends without closing anything.
        opened(tmp_path)
        if not os.fork():
            os.close(writer)
            os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    assert os.waitpid(child, 0)[1] == 0
    opened(tmp_path).close()
    os.close(writer)


def test_the_journal_of_another_flow_is_refused_with_the_first_difference(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    save_of(journal, 1)
    journal.close()
    for lines, complaint in (
        ((LINES[0], "role b"), "line 2 of the declaration is 'role a.* there and 'role b' here"),
        (LINES[:1], "line 2 .* there and 'nothing' here"),
        ((*LINES, "hook"), "line 3 .* is 'nothing' there and 'hook' here"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            opened(tmp_path, lines)
    opened(tmp_path).close()


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    """The folders of two saves, of steps 1 and 2; step 3 was yielded."""
    journal = opened(tmp_path)
    saves = [save_of(journal, step) for step in (1, 2)]
    journal.note_yielded(3)
    journal.close()
    return [tmp_path / "j" / save.name for save in saves]


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "name", ["worker-0/state.pt", "weights/actor/step-1/0.distcp", "master.pt", "record", "manifest"]
)
@pytest.mark.parametrize(
    "damage", [flip, Path.unlink, lambda path: os.truncate(path, 3)], ids=["flip", "gone", "cut"]
)
def test_a_damaged_save_is_set_aside_with_a_warning_and_the_one_before_counts(
    tmp_path: Path,
    two: list[Path],
    name: str,
    damage: Callable[[Path], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    damage(two[1] / name)
    if (name, damage) == ("manifest", Path.unlink):
        with pytest.raises(
            ConfigError, match=rf"has save .*/{two[1].name}, which is finished and has no manifest"
        ):
            opened(tmp_path)
        assert all(one.exists() for one in two)
        return
    journal = opened(tmp_path)
    assert journal.last is not None
    assert (journal.last.name, journal.last.step, journal.yielded) == (two[0].name, 1, 3)
    assert f"goes back to {two[0].name}, the save of step 1" in caplog.text
    assert f"{two[1].name} is damaged: '{Path(name).name}'" in caplog.text or name in (
        "manifest",
        "worker-0/state.pt",
    )
    assert (tmp_path / "j" / f"damaged-{two[1].name}").is_dir()
    save_of(journal, 2)
    journal.close()
    assert check_whole(tmp_path) == 2


def test_without_a_whole_save_nothing_begins_and_nothing_is_removed(tmp_path: Path, two: list[Path]) -> None:
    for one in two:
        flip(one / "master.pt")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(
        ConfigError, match=f"no save that is whole: .*{two[1].name} is .*{two[0].name} is damaged: 'master"
    ):
        opened(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before
    for one in two:
        shutil.rmtree(one)
    with pytest.raises(ConfigError, match="has no save, although step 3 was yielded"):
        opened(tmp_path)


def test_what_was_damaged_meanwhile_is_not_gone_back_to(tmp_path: Path, two: list[Path]) -> None:
    journal = opened(tmp_path)
    flip(two[1] / "record")
    journal.choose()
    assert journal.last is not None
    assert journal.last.name == two[0].name
    journal.close()


def test_a_save_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "j" / "save-3-0a1b2c").mkdir(mode=0o700, parents=True)
    (tmp_path / "j").chmod(0o700)
    with pytest.raises(ConfigError, match="has save-3-0a1b2c, expected a name such as"):
        opened(tmp_path)


EFFECTS = (
    *(
        (os, name)
        for name in ("write", "fsync", "mkdir", "rename", "replace", "ftruncate", "chmod", "pwrite", "unlink")
    ),
    (shutil, "rmtree"),
)


@contextlib.contextmanager
def killed_at(n: int) -> Iterator[None]:
    """The n-th call that changes a file system ends the process instead, after a part of what it does."""
    left = [n]
    with pytest.MonkeyPatch.context() as patch:
        for module, name in EFFECTS:
            real = getattr(module, name)

            def call(*args: Any, real: Any = real, name: str = name, **kwargs: Any) -> Any:
                left[0] -= 1
                if left[0] < 0:
                    raise Killed
                if left[0] == 0:
                    if name == "write":
                        real(args[0], bytes(args[1])[: len(args[1]) // 2])
                    if name == "rmtree":
                        for path in [path for path in Path(args[0]).rglob("*") if path.is_file()][:1]:
                            path.unlink()
                    raise Killed
                return real(*args, **kwargs)

            patch.setattr(module, name, call)

        # Here, because an exception in a thread ends nothing; `test_kill_master.py` kills a process there.
        def remove(self: JournalFolder, paths: list[Path]) -> None:
            for path in paths:
                removed = path.with_name(f".{path.name}-removed")
                path.rename(removed)
                shutil.rmtree(removed, ignore_errors=True)

        patch.setattr(JournalFolder, "_remove", remove)
        try:
            yield
        except Killed:
            return
    assert left[0] > 0


def test_a_process_that_ends_at_any_moment_leaves_a_whole_save(tmp_path: Path) -> None:
    found = set()
    for n in range(1, 500):
        path = tmp_path / str(n)
        done = [0]
        journal = None
        with killed_at(n):
            journal = opened(path)
            for step in (1, 2, 3):
                save_of(journal, step)
                done[0] = step
        if journal is not None:
            journal.close()
        step = check_whole(path)
        assert done[0] <= step <= done[0] + 1
        found.add(step)
        if done[0] == 3:
            break
    assert found == {0, 1, 2, 3}
    assert n > 40


@contextlib.contextmanager
def full_disk(n_bytes: int) -> Iterator[None]:
    """No file of this process may get longer."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_an_error_and_the_save_before_stays(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    before = save_of(journal, 1)
    partial = journal.begin(2)
    (partial / "master.pt").write_text("rows of step 2")
    save = some_save(random.Random(2), journal.name_of(partial))
    with full_disk(20), pytest.raises(FlowError, match="File too large; the save of step 1 stays"):
        journal.commit(partial, save)
    assert journal.last == before
    save_of(journal, 3)  # there is room again
    journal.close()
    assert check_whole(tmp_path) == 3
