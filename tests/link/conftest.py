"""Hosts for several files of tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from segments import made_by, sweep_until
from separate import Hosts


@pytest.fixture
def apart(short_path: Path) -> Iterator[Hosts]:
    """Both hosts, without links."""
    with ExitStack() as stack:
        hosts = Hosts(short_path, stack)
        yield hosts
    # The slots of links that were killed.
    sweep_until(lambda: made_by(hosts.pids) == [])


@pytest.fixture
def hosts(apart: Hosts) -> Hosts:
    """Both hosts, joined."""
    apart.join()
    return apart
