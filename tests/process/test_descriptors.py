"""Servers may have a descriptor per peer, up to the hard limit."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from softs_fast import Broker, EndpointConfig
from softs_fast.coordination.job.options import JobOptions
from softs_fast.coordination.server.serving import Coordinator, CoordinatorOptions
from softs_fast.dataflow.link.stream import MasterStream, listen_at

_LOW = 512


@pytest.fixture
def hard() -> Iterator[int]:
    """A low soft limit; returns the hard one."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_LOW, before[1]))
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def _broker(folder: Path) -> None:
    with Broker(EndpointConfig(f"ipc://{folder}/f", f"ipc://{folder}/b")):
        pass


def _coordinator(_: Path) -> None:
    async def serve() -> None:
        coordinator = Coordinator(JobOptions("j", 1, 1), CoordinatorOptions())
        await coordinator.start()
        await coordinator.stop()

    asyncio.run(serve())


def _flow(_: Path) -> None:
    with closing(MasterStream(listen_at("ipc://*", None))):
        pass


@pytest.mark.parametrize("serve", [_broker, _coordinator, _flow])
def test_a_server_raises_the_soft_limit(serve: Callable[[Path], None], hard: int, tmp_path: Path) -> None:
    serve(tmp_path)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
