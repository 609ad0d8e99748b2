"""The host and the states of processes, also where /proc is masked."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from softs_fast.errors import SegmentError
from softs_fast.identity import Process, boot_id, host_id, hosts, state_of, this_process


def without_boot(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(hosts, "_BOOT_ID", Path("/proc/masked"))


def without_process(patch: pytest.MonkeyPatch) -> None:
    def masked() -> None:
        raise SegmentError("masked")

    patch.setattr(hosts, "this_process", masked)


def test_processes_of_one_boot_and_namespace_have_one_host() -> None:
    assert host_id() == f"{boot_id()} {this_process().namespace}" == host_id()
    assert len(boot_id()) == 36


@pytest.mark.parametrize("mask", [without_boot, without_process])
def test_where_proc_is_masked_there_is_no_host(
    mask: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    boot_id.cache_clear()
    mask(monkeypatch)
    assert host_id() == ""
    boot_id.cache_clear()


@pytest.mark.parametrize("pid", [-5, 1 << 40])
def test_a_number_that_no_process_has_is_not_alive(pid: int) -> None:
    assert not Process(pid, 1, this_process().namespace).is_alive()


def test_the_states_of_a_process() -> None:
    child = subprocess.Popen(["/bin/sleep", "100"])
    assert state_of(child.pid) == "running"
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    assert state_of(child.pid) == "stopped"
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert state_of(child.pid) == "ended", "a zombie"
    child.wait()
    assert state_of(child.pid) == "ended"
