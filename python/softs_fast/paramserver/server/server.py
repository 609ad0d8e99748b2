"""A parameter server in a thread of a program."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import Future

from ...errors import ConfigError
from ...process import Closing, check_process, join
from ..job import Job
from ..rounds.options import RunOptions
from ..wire.invite import Invite
from ..wire.messages import RunConfig, Status
from .options import ServerOptions
from .service import Service

__all__ = ["Server"]


class Server(Closing):
    """Serves a run until it is over or the server is closed.

    Args:
        job: Job to train.
        run: Options of the run: how many workers, and when pushes are applied.
        config: Configuration that workers are told; values that the run options have too are taken from those.
        options: Options of the server: address, TLS, files.

    Raises:
        ConfigError: an option is wrong, a package is not installed, or a file cannot be used.
        EndpointInUse: another process listens at the address.

    Example:
        ```python
        with Server(job, RunOptions(world_size=2, rounds=50), RunConfig(rounds=50, batch_size=32)) as server:
            print(server.invite)
            server.wait()
        ```
    """

    def __init__(
        self, job: Job, run: RunOptions, config: RunConfig, options: ServerOptions | None = None
    ) -> None:
        self._given = (job, run, config, options or ServerOptions())
        self._pid = os.getpid()
        self._failure: BaseException | None = None
        self._close = asyncio.Event()
        up: Future[tuple[Service, asyncio.AbstractEventLoop]] = Future()
        self._thread = threading.Thread(target=self._run, args=(up,), name="softs-paramserver", daemon=True)
        self._thread.start()
        if up.exception() is not None:
            self._thread.join()
        self._service, self._loop = up.result()

    @property
    def invite(self) -> Invite:
        """The line with which workers are started."""
        return self._running().invite

    def status(self) -> Status:
        """Return what the run does.

        Raises:
            ConfigError: the server is closed.
        """
        service = self._running()

        async def read() -> Status:
            return service.driver.status()

        return asyncio.run_coroutine_threadsafe(read(), self._loop).result()

    def stop_run(self, reason: str = "stopped by the program") -> None:
        """End the run: after the open round, if it has a quorum.

        Raises:
            ConfigError: the server is closed.
        """
        self._loop.call_soon_threadsafe(self._running().stop_run, reason)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the run is over and its workers know it; return False if it takes longer.

        Args:
            timeout_s: seconds; None for any time.

        Raises:
            SoftsError: the server has failed.
        """
        join(self._thread, timeout_s)
        if self._failure is not None:
            raise self._failure
        return not self._thread.is_alive()

    def close(self) -> None:
        """Stop serving; the run can be resumed from its file."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._close.set)
        self._thread.join()

    def _running(self) -> Service:
        check_process(self._pid, "the parameter server")
        if not self._thread.is_alive():
            raise ConfigError("the parameter server is closed")
        return self._service

    def _run(self, up: Future[tuple[Service, asyncio.AbstractEventLoop]]) -> None:
        try:
            asyncio.run(self._serve(up))
        except BaseException as error:
            self._failure = error
            if not up.done():
                up.set_exception(error)

    async def _serve(self, up: Future[tuple[Service, asyncio.AbstractEventLoop]]) -> None:
        service = Service(*self._given)
        await service.start()
        up.set_result((service, asyncio.get_running_loop()))
        await service.serve_until(self._close)
