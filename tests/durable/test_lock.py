"""Locks: one process has one, and it ends with that process."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from softs_fast.durable import Lock
from softs_fast.errors import ConfigError


def in_fork(action: Callable[[], object]) -> str:
    """Run an action in a fork; return the text of its ConfigError, or nothing."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        text = "failed otherwise"
        try:
            action()
            text = ""
        except ConfigError as error:
            text = str(error)
        finally:
            os.write(write, text.encode())
            os._exit(0)
    os.close(write)
    with open(read, "rb") as file:
        text = file.read().decode()
    os.waitpid(child, 0)
    return text


def test_it_is_held_once_in_this_process_and_its_forks(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = Lock(path, "state file s")
    with pytest.raises(ConfigError, match="state file s is in use by this process; close it first"):
        Lock(path, "state file s")
    # Also after the failure above: that must not have opened the file, which would end the lock.
    assert in_fork(lambda: Lock(path, "it")) == (
        f"it is in use by process {os.getpid()}; end that process, or use another path"
    )
    assert in_fork(lock.close) == "", "a fork closes its descriptor only"
    assert "is in use" in in_fork(lambda: Lock(path, "it"))
    lock.close()
    lock.close()
    assert in_fork(lambda: Lock(path, "it")) == ""
    Lock(path, "it").close()


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert in_fork(lambda: Lock(path, "it")) == ""
    Lock(path, "it").close()


def test_a_lock_file_that_others_can_open_and_a_link_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="mode 0600"):
        Lock(path, "it")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="plain file"):
        Lock(tmp_path / "link", "it")
    assert not (tmp_path / "elsewhere").exists()
