"""kill -9 of a master in each phase: the next one goes on, and the weights have the same bits."""

from __future__ import annotations

import functools
import multiprocessing
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from journal_flow import make_flow, run_master, same, weights_of
from waiting import WATCHDOG_S

from softs_fast.dataflow.journal.folder import JournalFolder
from softs_fast.durable import files

N = 6
#: Where a master ends itself: before which call, on a path that ends how, and at which of these calls.
PHASES: dict[str, tuple[Any, str, str, int]] = {
    "before a save": (JournalFolder, "begin", "", 2),
    "while it writes rows": (os, "fsync", r"master\.pt", 2),
    "while it writes weights": (os, "fsync", r"\.distcp", 6),
    "while it writes generators": (os, "fsync", r"worker-1/state\.pt", 2),
    "before the folder has its name": (Path, "rename", r"/\.save-2-step-2-\w+", 1),
    "before its name is synced": (files, "sync_folder", r"/j", 2),
    "before the old save goes": (shutil, "rmtree", r"/\.save-1-step-0-\w+-removed", 1),
}


def killed_in(phase: str, folder: str) -> None:
    """Be a master that ends itself in a phase."""
    owner, name, path, n = PHASES[phase]
    real, left = getattr(owner, name), [n]

    def call(first: Any, *args: Any, **kwargs: Any) -> Any:
        on = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else str(first)
        left[0] -= bool(re.search(f"{path}$", on))
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(first, *args, **kwargs)

    setattr(owner, name, call)
    run_master(functools.partial(make_flow, folder), N, f"{folder}.steps")


def be_master(folder: str) -> None:
    """Be a master until the end."""
    run_master(functools.partial(make_flow, folder), N, f"{folder}.steps")


def started(target: Callable[..., None], *args: Any) -> Any:
    """Start a process of `multiprocessing`; the type of a forkserver's process has no public name."""
    process = multiprocessing.get_context("forkserver").Process(target=target, args=args)
    process.start()
    return process


def ended(process: Any) -> int:
    """Wait for the end of a process; returns its exit code."""
    process.join(4 * WATCHDOG_S)
    code: int | None = process.exitcode
    process.close()
    assert code is not None
    return code


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("undisturbed") / "j"
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    assert ended(started(be_master, str(folder))) == 0
    yield weights_of(folder)
    torch.set_num_threads(n_threads)


def check_numbers(path: Path) -> None:
    """Each step is there; one that was there before says so."""
    seen: set[int] = set()
    for line in path.read_text().splitlines():
        number, is_repeated = line.split()
        assert is_repeated == "True" or int(number) not in seen
        seen.add(int(number))
    # A step that is yielded when the master is killed may be missing, as the line is written later.
    assert len(set(range(1, N + 1)) - seen) <= 1


@pytest.mark.parametrize("phase", PHASES)
def test_a_master_that_is_killed_in_a_phase(phase: str, tmp_path: Path, undisturbed: Any) -> None:
    folder = str(tmp_path / "j")
    assert ended(started(killed_in, phase, folder)) == -signal.SIGKILL
    assert ended(started(be_master, folder)) == 0
    assert same(weights_of(tmp_path / "j"), undisturbed)
    check_numbers(tmp_path / "j.steps")
