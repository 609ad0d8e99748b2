"""Fixtures for flows on several hosts."""

from __future__ import annotations

import pytest

from softs_fast.dataflow.workers.host_meeting import HostMeeting


@pytest.fixture(scope="module", autouse=True)
def pipe_of_libuv() -> None:
    """The first store of a process makes a pipe for signals, which libuv keeps as long as the process."""
    HostMeeting("tcp://127.0.0.1:0").close()
