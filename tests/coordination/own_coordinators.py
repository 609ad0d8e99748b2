"""Coordinators in the process of a test, in an event loop of their own: they begin and end within milliseconds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

from waiting import WATCHDOG_S

from softs_fast.coordination.credentials import ServerCredentials
from softs_fast.coordination.job.options import JobOptions
from softs_fast.coordination.server.serving import Coordinator, CoordinatorOptions


class OwnCoordinators:
    """They end with the test."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._running: dict[str, Coordinator] = {}

    def serve(self, credentials: ServerCredentials | None = None, n: int = 1, **options: Any) -> str:
        """Start a coordinator of the job "j"; return its address."""
        made = CoordinatorOptions(credentials=credentials or ServerCredentials(), **options)
        coordinator = Coordinator(JobOptions("j", n, n), made)
        self._run(coordinator.start())
        self._running[coordinator.address] = coordinator
        return coordinator.address

    def stop(self, address: str) -> None:
        """Stop one."""
        self._run(self._running.pop(address).stop())

    def end(self) -> None:
        """Stop all."""
        for address in list(self._running):
            self.stop(address)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, step: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(step, self._loop).result(WATCHDOG_S)
