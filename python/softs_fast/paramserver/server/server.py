"""A parameter server in a thread of a program."""

from __future__ import annotations

import asyncio
import os
import threading
from types import TracebackType
from typing import Self

from ...errors import ConfigError
from ...process import check_process, join
from ..job import Job
from ..rounds.options import RunOptions
from ..wire.invite import Invite
from ..wire.messages import RunConfig, Status
from .options import ServerOptions
from .service import Service

__all__ = ["Server"]


class Server:
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
        self._service: Service | None = None
        self._pid = os.getpid()
        self._failure: BaseException | None = None
        self._is_up = threading.Event()
        self._close = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="softs-paramserver", daemon=True)
        self._thread.start()
        self._is_up.wait()
        if self._service is None:
            self._thread.join()
            assert self._failure is not None
            raise self._failure

    @property
    def invite(self) -> Invite:
        """The line with which workers are started."""
        return self._running().invite

    def status(self) -> Status:
        """Return what the run does.

        Raises:
            ConfigError: the server is closed.
        """
        service, loop = self._running(), self._loop
        assert loop is not None

        async def read() -> Status:
            return service.driver.status()

        return asyncio.run_coroutine_threadsafe(read(), loop).result()

    def stop_run(self, reason: str = "stopped by the program") -> None:
        """End the run: after the open round, if it has a quorum.

        Raises:
            ConfigError: the server is closed.
        """
        service, loop = self._running(), self._loop
        assert loop is not None
        loop.call_soon_threadsafe(service.stop_run, reason)

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
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._close.set)
        self._thread.join()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the server."""
        self.close()

    def _running(self) -> Service:
        check_process(self._pid, "the parameter server")
        if self._service is None or not self._thread.is_alive():
            raise ConfigError("the parameter server is closed")
        return self._service

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._is_up.set()

    async def _serve(self) -> None:
        service = Service(*self._given)
        await service.start()
        self._loop = asyncio.get_running_loop()
        self._service = service
        self._is_up.set()
        await service.serve_until(self._close)
