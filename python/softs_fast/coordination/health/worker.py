"""The health of a worker, served beside its training."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

from ...errors import EndpointInUse, WireError
from ...monitoring import Page, PageServer, page_address
from ...trust import bracketed
from ..requirements import import_grpc
from . import service
from .readiness import Worker, readiness_page

__all__ = ["WorkerHealth"]

#: A watcher is told of a change within this, seconds.
_LOOK_S = 0.25
#: Watchers at once; each has a thread.
_MOST_WATCHERS = 4
#: Calls may end by themselves for so long.
_GRACE_S = 0.5


class WorkerHealth:
    """Answers whether a worker has a seat in an open epoch, from `start` to `close`.

    ``/healthz`` answers as long as the process does, ``/readyz`` with 503 and the reason while there is no seat in an
    open epoch. There is no authentication.

    Args:
        worker: a `WorkerNode` or a `Membership`.
        http: where to serve both pages, ``host:port``; port 0 takes a free one.
        grpc: where to serve grpc.health.v1; None: nowhere.
        allow_remote: lets the addresses be reachable from other machines, as a kubelet is.

    Raises:
        ConfigError: an address is malformed, or reachable from other machines without ``allow_remote=True``; gRPC is not
            installed.

    Example:
        >>> from softs_fast.coordination.health import WorkerHealth
        >>> def train(node, steps):
        ...     with WorkerHealth(node, "0.0.0.0:8080", allow_remote=True), node:
        ...         steps(node)
    """

    def __init__(
        self, worker: Worker, http: str, *, grpc: str | None = None, allow_remote: bool = False
    ) -> None:
        self._worker = worker
        pages = {"/readyz": lambda: readiness_page(worker.not_ready), "/healthz": lambda: Page("alive\n")}
        self._pages = PageServer(pages, http, what="health", allow_remote=allow_remote)
        self._address = None if grpc is None else page_address(grpc, "health", allow_remote)
        self._grpc: Any = None if grpc is None else import_grpc()
        self._server: Any = None
        self._pid = os.getpid()
        self._ended = threading.Event()
        self._free = threading.BoundedSemaphore(_MOST_WATCHERS)
        self.grpc_port: int | None = None

    @property
    def url(self) -> str:
        """URL of the page of readiness, with the port that was chosen."""
        return self._pages.url

    def start(self) -> Self:
        """Begin to serve; return self.

        Raises:
            EndpointInUse: something else listens at an address.
            PeerLost: the operating system refused an address.
        """
        self._pages.start()
        if self._address is not None and self._server is None:
            target = f"{bracketed(self._address.numeric[0])}:{self._address.port}"
            self._ended.clear()
            # One thread more than watchers, so that checks are answered.
            pool = ThreadPoolExecutor(_MOST_WATCHERS + 1, thread_name_prefix="softs-health")
            self._server = self._grpc.server(
                pool,
                options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 4096)],
                maximum_concurrent_rpcs=_MOST_WATCHERS + 1,
            )
            handlers = {
                "Check": self._grpc.unary_unary_rpc_method_handler(self._check),
                "Watch": self._grpc.unary_stream_rpc_method_handler(self._watch),
            }
            self._server.add_generic_rpc_handlers(
                (self._grpc.method_handlers_generic_handler(service.SERVICE, handlers),)
            )
            try:
                self.grpc_port = self._server.add_insecure_port(target)
            except RuntimeError:
                # gRPC releases what a server has only if it was started.
                self._server.start()
                self.close()
                raise EndpointInUse(f"cannot serve health at {target}: another process does") from None
            self._server.start()
        return self

    def close(self) -> None:
        """Stop serving. Idempotent; in a fork it does nothing, because the servers are the parent's."""
        if os.getpid() != self._pid:
            return
        self._ended.set()
        if self._server is not None:
            self._server.stop(_GRACE_S).wait()
            self._server = None
        self._pages.close()

    def __enter__(self) -> Self:
        """Begin to serve."""
        return self.start()

    def __exit__(self, *args: object) -> None:
        """Stop serving."""
        self.close()

    def _is_known(self, request: bytes, context: Any) -> bool:
        try:
            return service.is_known(request, ())
        except WireError as error:
            context.abort(self._grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise

    def _check(self, request: bytes, context: Any) -> bytes:
        if not self._is_known(request, context):
            context.abort(self._grpc.StatusCode.NOT_FOUND, "no such service")
        return service.encode_answer(not self._worker.not_ready)

    def _watch(self, request: bytes, context: Any) -> Iterator[bytes]:
        is_known = self._is_known(request, context)
        if not self._free.acquire(blocking=False):
            context.abort(self._grpc.StatusCode.RESOURCE_EXHAUSTED, f"{_MOST_WATCHERS} watch already")
        said: list[bool | None] = []
        try:
            while context.is_active():
                now = not self._worker.not_ready if is_known else None
                if said != [now]:
                    said = [now]
                    yield service.encode_answer(now)
                if self._ended.wait(_LOOK_S):
                    return
        finally:
            self._free.release()
