"""The folder of a journal: one master, private files, a save that is whole at any moment, a full disk."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from journal_samples import DECLARED, some_save

from softs_fast.dataflow.journal import folder as folder_module
from softs_fast.dataflow.journal.folder import JournalFolder
from softs_fast.dataflow.journal.records import CommonSave, encode
from softs_fast.errors import ConfigError, FlowError

LINES = list(DECLARED.lines)


class Killed(BaseException):
    """What ends a process in these tests: nothing handles it."""


def opened(path: Path, lines: list[str] = LINES) -> JournalFolder:
    return JournalFolder(path / "j", lines)


def save_of(journal: JournalFolder, step: int) -> CommonSave:
    """Make a save of one file, and have it count."""
    partial = journal.begin(step)
    (partial / "worker-0").mkdir()
    (partial / "worker-0" / "state.pt").write_text(f"state of step {step}")
    (partial / "master.pt").write_text(f"rows of step {step}")
    found = some_save(random.Random(step), journal.name_of(partial))
    save = CommonSave(**{**vars(found), "step": step})
    journal.commit(partial, save)
    return save


def check_whole(path: Path) -> int:
    """Open a journal that a killed process has left; returns the step of its save, 0 if there is none."""
    journal = opened(path)
    try:
        save = journal.last
        folders = {found.name for found in journal.path.iterdir() if found.is_dir()}
        assert folders == ({save.name} if save is not None else set())
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
    with pytest.raises(ConfigError, match=r"is no folder of this user alone \(mode drwxr-xr-x, .* chmod 700"):
        opened(tmp_path)


def test_two_flows_of_one_process_on_one_journal_are_refused(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for _ in range(2):
        with pytest.raises(ConfigError, match="is in use by another flow of this process"):
            opened(tmp_path)
    with pytest.raises(ConfigError, match=f"is in use by another master, process {os.getpid()}"):
        open_elsewhere(tmp_path)
    journal.close()
    opened(tmp_path).close()


def open_elsewhere(path: Path) -> None:
    """Open a journal in another process; raises what that one raised."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        folder_module._open_here.clear()  # as in a process of its own
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
    opened(tmp_path).close()
    for lines, complaint in (
        ([LINES[0], "role b"], "line 2 of the declaration is 'role a.* there and 'role b' here"),
        (LINES[:1], "line 2 .* there and 'nothing' here"),
        ([*LINES, "hook"], "line 3 .* is 'nothing' there and 'hook' here"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            opened(tmp_path, lines)
    opened(tmp_path).close()


def test_a_damaged_journal_and_a_save_that_is_not_there_are_refused(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    save = save_of(journal, 1)
    journal.close()
    path = tmp_path / "j" / "journal"
    data = path.read_bytes()
    path.write_bytes(data[:40] + b"x" + data[41:])
    with pytest.raises(ConfigError, match=r"journal .* is damaged at byte 30"):
        opened(tmp_path)
    path.write_bytes(data)
    shutil.rmtree(tmp_path / "j" / save.name)
    with pytest.raises(ConfigError, match=f"names {save.name}, the save of step 1, which is not there"):
        opened(tmp_path)


def test_a_record_that_was_cut_short_does_not_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = opened(tmp_path)
    before = save_of(journal, 1)
    journal.close()
    record = encode(some_save(random.Random(2)))
    for n_bytes in (1, 11, 12, len(record) - 1):
        with (tmp_path / "j" / "journal").open("ab") as file:
            file.write(record[:n_bytes])
        journal = opened(tmp_path)
        assert journal.last == before
        journal.close()
    journal = opened(tmp_path)
    save_of(journal, 2)
    journal.close()
    assert check_whole(tmp_path) == 2
    assert "are no whole record" in caplog.text


def test_a_long_journal_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "_COMPACT_BYTES", 2000)
    journal = opened(tmp_path)
    for step in range(1, 40):
        save_of(journal, step)
        assert (tmp_path / "j" / "journal").stat().st_size < 4000
    journal.close()
    assert check_whole(tmp_path) == 39


EFFECTS = (
    *((os, name) for name in ("write", "fsync", "mkdir", "rename", "ftruncate", "chmod", "pwrite", "unlink")),
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
        patch.setattr(JournalFolder, "_remove", lambda self, path: shutil.rmtree(path, ignore_errors=True))
        try:
            yield
        except Killed:
            return
    assert left[0] > 0


@pytest.mark.parametrize("is_compact", [False, True])
def test_a_process_that_ends_at_any_moment_leaves_a_whole_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_compact: bool
) -> None:
    if is_compact:
        monkeypatch.setattr(folder_module, "_COMPACT_BYTES", 400)
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
    size = (tmp_path / "j" / "journal").stat().st_size
    partial = journal.begin(2)
    (partial / "master.pt").write_text("rows of step 2")
    save = some_save(random.Random(2), journal.name_of(partial))
    with full_disk(size + 20), pytest.raises(FlowError, match="File too large; the save of step 1 stays"):
        journal.commit(partial, save)
    assert journal.last == before
    assert (tmp_path / "j" / "journal").stat().st_size == size
    save_of(journal, 3)  # there is room again
    journal.close()
    assert check_whole(tmp_path) == 3
