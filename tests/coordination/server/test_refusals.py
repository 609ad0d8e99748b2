"""What the coordinator logs of calls that it refuses."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

pytest.importorskip("grpc", reason="needs the extra grpc")
from softs_fast.coordination.server.guard import Denied
from softs_fast.coordination.server.service import answered
from softs_fast.repeated_log import RepeatedLog


class Context:
    """A call of a peer."""

    def __init__(self, peer: str) -> None:
        self._peer = peer

    def peer(self) -> str:
        return self._peer

    async def abort(self, code: Any, text: str) -> None:
        pass


def test_one_line_for_each_address(caplog: pytest.LogCaptureFixture) -> None:
    """Else a peer that tries again and again fills the log."""

    async def denied() -> None:
        raise Denied("give --token-file", True)

    now = [0.0]
    refusals = RepeatedLog(logging.getLogger("softs_fast.coordination"), lambda: now[0])

    async def refuse() -> None:
        for port in range(100):
            for host in ("10.0.0.1", "10.0.0.2"):
                await answered(denied(), Context(f"ipv4:{host}:{port}"), refusals)
        now[0] = 10.0
        await answered(denied(), Context("ipv4:10.0.0.1:7"), refusals)

    asyncio.run(refuse())
    assert caplog.messages == [
        "refused ipv4:10.0.0.1:0: give --token-file",
        "refused ipv4:10.0.0.2:0: give --token-file",
        "refused ipv4:10.0.0.1:0: give --token-file (100 more in the last 10.0 s)",
    ]
