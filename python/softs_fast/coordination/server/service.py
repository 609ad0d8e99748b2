"""The methods of the coordinator, and of `grpc.health.v1`, as gRPC calls them: bytes to messages, errors to status codes."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from ...errors import ConfigError, PeerLost, WireError
from ...records import Record
from ...repeated_log import RepeatedLog
from ..health import service as health_service
from ..health.readiness import coordinator_reason
from ..requirements import import_grpc
from ..wire import requests
from ..wire.formats import ACTIONS, FORMATS, STATUS
from .driver import Driver
from .guard import Denied, Guard
from .heartbeats import HeartbeatWorkers
from .keys import KeysMissing
from .streams import WorkerStream

__all__ = ["Service", "answered"]


#: Least time from one look at the status to the next, for one watcher.
_WATCH_INTERVAL_S = 0.2


class Service:
    """Answers calls.

    Args:
        driver: Driver of the job.
        guard: Guard that knows the callers.
        job: Name of the job.
        most_workers: Largest number of workers that may be connected, some that are about to be refused included.
        logger: Logger of calls that are refused, and of those of administrators.
    """

    def __init__(
        self, driver: Driver, guard: Guard, job: str, most_workers: int, logger: logging.Logger
    ) -> None:
        self._logger = logger
        self._refusals = RepeatedLog(logger)
        self._driver = driver
        self._guard = guard
        self._job = job
        self._most_workers = most_workers
        self._n_streams = 0
        self._heartbeats = HeartbeatWorkers(driver, job, most_workers)

    def handlers(self) -> Any:
        """Return what gRPC's server takes."""
        grpc = import_grpc()
        watch, streams = grpc.unary_stream_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        by_path = {
            requests.SESSION: streams(self._session),
            requests.STATUS: self._unary(self._status),
            requests.WATCH: watch(self._watch),
            requests.ADMIN: self._unary(self._admin),
            **{
                requests.method_of(request): self._unary(functools.partial(self._reply, request))
                for request in requests.REPLIES
            },
        }
        health = {"Check": self._unary(self._check_health), "Watch": watch(self._watch_health)}
        return (
            grpc.method_handlers_generic_handler(
                requests.SERVICE, {path.rpartition("/")[2]: handler for path, handler in by_path.items()}
            ),
            grpc.method_handlers_generic_handler(health_service.SERVICE, health),
        )

    def close(self) -> None:
        """Give up the workers that have no stream."""
        self._heartbeats.close()

    async def _session(self, _: Any, context: Any) -> None:
        await answered(self._serve(context), context, self._refusals)

    async def _serve(self, context: Any) -> None:
        identity = self._guard.worker(context)
        if self._n_streams >= self._most_workers:
            raise _Full(f"{self._most_workers} workers are connected, the most that may be")
        self._n_streams += 1
        try:
            await WorkerStream(self._driver, context, identity).serve()
        finally:
            self._n_streams -= 1

    def _unary(self, answer: Callable[[bytes, Any], Awaitable[bytes]]) -> Any:
        async def call(data: bytes, context: Any) -> Any:
            return await answered(answer(data, context), context, self._refusals)

        return import_grpc().unary_unary_rpc_method_handler(call)

    async def _changes(self) -> AsyncIterator[None]:
        """Iterate: at once, then after each change of the status, with a pause between two."""
        while True:
            # Before the status is read: what changes after that is not missed.
            changed = self._driver.changed
            yield
            await changed.wait()
            await asyncio.sleep(_WATCH_INTERVAL_S)

    async def _status(self, _: bytes, context: Any) -> bytes:
        self._guard.identity(context)
        return STATUS.encode(self._driver.status())

    async def _watch(self, data: bytes, context: Any) -> AsyncIterator[bytes]:
        async for _ in self._changes():
            yield await answered(self._status(data, context), context, self._refusals)

    async def _admin(self, data: bytes, context: Any) -> bytes:
        self._guard.administrator(context)
        action = ACTIONS.decode(data)
        self._logger.warning("administrator at %s: %s", context.peer(), action)
        return FORMATS[requests.AdminReply].encode(requests.AdminReply(tuple(self._driver.handle(action))))

    async def _reply(self, cls: type[requests.Request], data: bytes, context: Any) -> bytes:
        identity = self._guard.worker(context)
        reply = await self._answer(FORMATS[cls].decode(data), identity)
        return FORMATS[type(reply)].encode(reply)

    async def _answer(self, request: requests.Request, identity: str | None) -> Record:
        match request:
            case requests.KeysRequest():
                if request.job != self._job:
                    raise PeerLost(
                        f'keys of job "{request.job[:200]}"; this is the coordinator of "{self._job[:200]}"'
                    )
                return await self._driver.keys.apply(request, identity)
            case requests.RegisterWorkerRequest():
                return await self._heartbeats.register(request, identity)
            case requests.UnregisterWorkerRequest():
                return self._heartbeats.unregister(request, identity)
            case requests.HeartbeatRequest():
                return self._heartbeats.heartbeat(request, identity)
            case requests.StartCheckpointRequest():
                return self._heartbeats.start_checkpoint(request, identity)
            case requests.EndCheckpointRequest():
                return self._heartbeats.end_checkpoint(request, identity)

    # --- Health: whether workers can take part; told to all that have an identity, as the status is ---

    async def _check_health(self, data: bytes, context: Any) -> bytes:
        if not await self._is_known(data, context):
            await context.abort(import_grpc().StatusCode.NOT_FOUND, "no such service")
        return health_service.encode_answer(self._is_serving())

    async def _watch_health(self, data: bytes, context: Any) -> AsyncIterator[bytes]:
        is_known = await answered(self._is_known(data, context), context, self._refusals)
        said: list[bool | None] = []
        async for _ in self._changes():
            now = self._is_serving() if is_known else None
            if said != [now]:
                said = [now]
                yield health_service.encode_answer(now)

    def _is_serving(self) -> bool:
        return not coordinator_reason(self._driver.status())

    async def _is_known(self, data: bytes, context: Any) -> bool:
        self._guard.identity(context)
        return health_service.is_known(data, (requests.SERVICE,))


class _Full(Exception):
    """There is no room for one more."""


async def answered(answer: Awaitable[Any], context: Any, refusals: RepeatedLog) -> Any:
    """Await an answer; an error of ours becomes the status of the call, and a line for its address once in a while."""
    codes = import_grpc().StatusCode
    try:
        return await answer
    except Denied as error:
        code, text = codes.UNAUTHENTICATED if error.is_unknown else codes.PERMISSION_DENIED, str(error)
    except (WireError, ConfigError) as error:
        code, text = codes.INVALID_ARGUMENT, str(error)
    except KeysMissing as error:
        code, text = codes.DEADLINE_EXCEEDED, str(error)
    except PeerLost as error:
        code, text = codes.FAILED_PRECONDITION, str(error)
    except _Full as error:
        code, text = codes.RESOURCE_EXHAUSTED, str(error)
    is_expected = code in (codes.DEADLINE_EXCEEDED, codes.FAILED_PRECONDITION)
    level, peer = logging.DEBUG if is_expected else logging.WARNING, context.peer()
    refusals.log(level, (peer.rpartition(":")[0], code), f"refused {peer}: {text}")
    return await context.abort(code, text)
