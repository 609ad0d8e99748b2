"""The health of a coordinator by `grpc.health.v1`, at the port of workers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from ...repeated_log import RepeatedLog
from ..health import service
from ..health.readiness import coordinator_reason
from ..requirements import import_grpc
from ..wire import methods
from .driver import Driver
from .guard import Guard
from .service import answered

__all__ = ["HealthService"]

#: Least time from one look at the status to the next, for one watcher.
_INTERVAL_S = 0.2


class HealthService:
    """Answers whether workers can take part: to all that have an identity, as `Status` does.

    Args:
        driver: Driver of the job.
        guard: Guard that knows the callers.
        logger: Logger of calls that are refused.
    """

    def __init__(self, driver: Driver, guard: Guard, logger: logging.Logger) -> None:
        self._driver = driver
        self._guard = guard
        self._refusals = RepeatedLog(logger)
        self._grpc = import_grpc()

    def handlers(self) -> Any:
        """Return what gRPC's server takes."""
        return self._grpc.method_handlers_generic_handler(
            service.SERVICE,
            {
                "Check": self._grpc.unary_unary_rpc_method_handler(self._check),
                "Watch": self._grpc.unary_stream_rpc_method_handler(self._watch),
            },
        )

    async def _check(self, request: bytes, context: Any) -> bytes:
        if not await self._is_known(request, context):
            await context.abort(self._grpc.StatusCode.NOT_FOUND, "no such service")
        return service.encode_answer(self._is_serving())

    async def _watch(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        is_known = await self._is_known(request, context)
        said: list[bool | None] = []
        while True:
            changed = asyncio.ensure_future(self._driver.wait_for_change())
            try:
                # Before the status is read: what changes after that is not missed.
                await asyncio.sleep(0)
                now = self._is_serving() if is_known else None
                if said != [now]:
                    said = [now]
                    yield service.encode_answer(now)
                await changed
            finally:
                changed.cancel()
            await asyncio.sleep(_INTERVAL_S)

    def _is_serving(self) -> bool:
        return not coordinator_reason(self._driver.status())

    async def _is_known(self, request: bytes, context: Any) -> bool:
        async def answer() -> bool:
            self._guard.identity(context)
            return service.is_known(request, (methods.SERVICE,))

        is_known: bool = await answered(answer(), context, self._refusals)
        return is_known
