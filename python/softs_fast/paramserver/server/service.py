"""A parameter server on an event loop: built from its file, served, ended."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

from ... import records
from ...errors import ConfigError
from ...process import raise_descriptor_limit
from ...trust import Place, bracketed
from ..job import Job
from ..requirements import import_package
from ..rounds import events
from ..rounds.options import RunOptions
from ..rounds.run import Run
from ..wire.codecs import import_zstd
from ..wire.invite import Invite
from ..wire.limits import MAX_HEADER_BYTES
from ..wire.messages import RunConfig
from .driver import Driver
from .http.application import Application
from .http.listening import BACKLOG, listen
from .http.pushes import Pushes
from .http.sessions import Sessions
from .options import ServerOptions
from .training.evaluation import Evaluation
from .training.state_file import load_state, lock_state, new_state, save_state
from .training.trainer import Trainer
from .training.weights import Committed, Weights

__all__ = ["Service"]

#: Connections at a time.
_MAX_CONNECTIONS = 4096
#: Of a connection without a request.
_KEEP_ALIVE_S = 75
_HANDSHAKE_S = 10.0
#: Answers under way at the end of a run may take so many times the linger time.
_LONGEST_TIMES = 20
#: Answers under way may end when the server does.
_CLOSE_S = 5.0


class Service:
    """A server. It is built and used on one event loop.

    Args:
        job: Job to train.
        run: Options of the run: how many workers, and when pushes are applied.
        config: Configuration that workers are told; values that the run options have too are taken from those.
        options: Options of this process.
        listener: Listening socket, as `listen` returns it; None: it is made here.

    Raises:
        ConfigError: uvicorn or zstd is not installed, a file cannot be used, or another server uses the state file.
        EndpointInUse: another process listens at the address.
    """

    def __init__(
        self,
        job: Job,
        run: RunOptions,
        config: RunConfig,
        options: ServerOptions,
        listener: socket.socket | None = None,
    ) -> None:
        import_package("uvicorn")
        config = _fitting(config, run)
        if config.compression:
            import_zstd()
        self.options = options
        self._context = None if options.tls is None else options.tls.ssl_server(["http/1.1"])
        self._lock = lock_state(options.state)
        try:
            self._build(job, run, config, listener)
        except BaseException:
            self._lock.close()
            raise

    def _build(self, job: Job, run: RunOptions, config: RunConfig, listener: socket.socket | None) -> None:
        options = self.options
        saved = load_state(options.state)
        self.is_restart = saved is not None
        self._saved = saved or new_state()
        self._trainer = Trainer(job, self._saved.trainer, options.norm_guard)
        loop = asyncio.get_running_loop()
        self.run = Run(run, loop.time(), self._saved.snapshot)
        evaluation = Evaluation(options, self._saved.best)
        self._write_first()
        self._socket = listener or listen(options)
        weights = Weights(
            self._saved.job,
            self._trainer.manifest,
            Committed(self.run.version, self._trainer.contents()),
            1 if run.mode == "bsp" else 2 * run.world_size,
            config.compression,
        )
        self.driver = Driver(self.run, self._trainer, weights, evaluation, self._saved, options, config)
        pushes = Pushes(self.driver, options.max_upload_bytes)
        sessions = Sessions(self._saved.secret, self._saved.job, self._saved.owner)
        has_token = self._token_file is not None
        self._application = Application(self.driver, sessions, pushes, run.world_size, has_token)
        self._server: asyncio.Server | None = None
        self._state: Any = None

    @property
    def port(self) -> int:
        """Where the server listens."""
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """Of the server on this machine."""
        scheme = "http" if self._context is None else "https"
        return f"{scheme}://{self._target}"

    @property
    def _target(self) -> str:
        address = self.options.address
        host = socket.gethostname() if address.is_unspecified else address.host
        return f"{bracketed(host)}:{self.port}"

    @property
    def local_invite(self) -> Invite:
        """The invite for programs on this machine."""
        file = self._token_file
        place = None if file is None else Place((self._target,), token_file=file.absolute())
        return Invite(self.url, self._saved.job, self._saved.secret, self._pin, place)

    @property
    def invite(self) -> Invite:
        """The line with which workers are started."""
        if self.options.public_url is None:
            return self.local_invite
        url = self.options.public_url.rstrip("/")
        # With a certificate of its own the server is meant to be seen behind the URL, such as by a forwarded port.
        pin = self._pin if url.startswith("https://") else None
        return Invite(url, self._saved.job, self._saved.secret, pin)

    @property
    def _token_file(self) -> Path | None:
        return None if self.options.tls is None else self.options.tls.token_file

    @property
    def _pin(self) -> bytes | None:
        return None if self.options.tls is None else self.options.tls.pin()

    @property
    def owner_secret(self) -> bytes:
        """With which the owner's key is made."""
        return self._saved.owner

    async def serve_until(self, ended: asyncio.Event) -> None:
        """Wait until the run is over and its workers know it, or an event is set; then stop listening.

        Raises:
            ConfigError: the state is of another optimizer; the file keeps it.
        """
        waits: list[asyncio.Future[object]] = [
            asyncio.ensure_future(self.wait()),
            asyncio.ensure_future(ended.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if waits[0].done():
                waits[0].result()
        finally:
            for one in waits:
                one.cancel()
            await self.close()

    async def start(self) -> None:
        """Begin to listen."""
        import uvicorn
        from uvicorn.server import ServerState

        from .http.connection import Connection

        config = uvicorn.Config(
            self._application,
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            limit_concurrency=_MAX_CONNECTIONS,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        )
        config.load()
        raise_descriptor_limit()
        self._state = state = ServerState()
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Connection(config, state, {}, self._application.budget),
            sock=self._socket,
            ssl=self._context,
            ssl_handshake_timeout=None if self._context is None else _HANDSHAKE_S,
            backlog=BACKLOG,
        )
        if self._saved.trouble:
            self.driver.note(self._saved.trouble, is_warning=True)
        self.driver.start()

    async def wait(self) -> None:
        """Wait until the run is over, and all workers have heard of it, or some time has passed.

        Raises:
            ConfigError: the state is of another optimizer; the file keeps it.
        """
        await self.driver.ended.wait()
        if self.driver.failure is not None:
            raise self.driver.failure
        ended_s = asyncio.get_running_loop().time()
        # The answers that tell it are no change, so this looks at times of its own.
        while not self.run.is_known_by_all:
            linger_s = asyncio.get_running_loop().time() - ended_s
            # The last weights may take longer on a slow link.
            is_sending = self._application.n_sending > 0 and linger_s < _LONGEST_TIMES * self.options.linger_s
            if linger_s >= self.options.linger_s and not is_sending:
                break
            await asyncio.sleep(0.1)

    def stop_run(self, reason: str, at_once: bool = False) -> None:
        """End the run: after the open round, if it has a quorum."""
        self.driver.tell(events.Stop(reason, at_once=at_once))

    async def close(self) -> None:
        """Stop listening, end answers, write what is to be written."""
        if self._server is not None:
            self._server.close()
        self.driver.release()
        if self._state is not None:
            for connection in list(self._state.connections):
                connection.shutdown()
            if self._state.tasks:
                await asyncio.wait(self._state.tasks, timeout=_CLOSE_S)
            for task in list(self._state.tasks):
                task.cancel()
            for connection in list(self._state.connections):
                connection.transport.abort()
        try:
            await self.driver.close()
            if self._server is not None:
                await self._server.wait_closed()
        finally:
            self._socket.close()
            self._lock.close()

    def _write_first(self) -> None:
        """The timeline of this server must be in both files before any worker sees it: either may be lost later."""
        trainer = self._saved.trainer or self._trainer.state()
        saved = replace(self._saved, snapshot=self.run.snapshot(), trainer=trainer)
        try:
            for _ in range(2):
                save_state(self.options.state, saved)
        except OSError as error:
            raise ConfigError(
                f"the state file {self.options.state} cannot be written: {error.strerror or error}; free some space, or "
                "give another --state"
            ) from None
        # It may be three times the model.
        self._saved = replace(self._saved, trainer=None)


def _fitting(config: RunConfig, run: RunOptions) -> RunConfig:
    """Return the configuration of workers with what the run says."""
    return records.replace(
        config,
        rounds=run.rounds,
        mode=run.mode,
        lost_after_s=run.lost_after_s,
        data="leases" if run.dataset_size else "rank",
        dataset_size=run.dataset_size or config.dataset_size,
    )
