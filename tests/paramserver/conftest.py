"""Servers in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from raw_client import RawClient, job_of

from softs_fast.paramserver.job import Job
from softs_fast.paramserver.rounds.options import RunOptions
from softs_fast.paramserver.server.options import ServerOptions
from softs_fast.paramserver.server.server import Server
from softs_fast.paramserver.wire.manifest import Manifest
from softs_fast.paramserver.wire.messages import RunConfig

Serve = Callable[..., Server]
Enter = Callable[..., RawClient]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts servers; they end with the test."""
    with ExitStack() as stack:

        def start(
            job: Job | None = None,
            config: dict[str, Any] | None = None,
            options: dict[str, Any] | None = None,
            **run: Any,
        ) -> Server:
            given = {"world_size": 1, "rounds": 100} | run
            files = {
                "listen": "127.0.0.1:0",
                "state": tmp_path / "s.state",
                "output": tmp_path / "o.pth",
                "linger_s": 0,
            }
            server = Server(
                job or job_of(),
                RunOptions(**given),
                RunConfig(**({"rounds": 1, "batch_size": 4} | (config or {}))),
                ServerOptions(**(files | (options or {}))),
            )
            return stack.enter_context(server)

        yield start


@pytest.fixture
def enter() -> Enter:
    """Makes workers that have joined."""

    def make(server: Server, job: Job | None = None, **changes: Any) -> RawClient:
        client = RawClient(server.invite, Manifest.of((job or job_of()).model()))
        answer = client.join(**changes)
        assert answer.status == 200, answer.body
        assert answer.is_signed
        return client

    return make
