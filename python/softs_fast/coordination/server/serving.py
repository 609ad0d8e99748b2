"""Runs a coordinator: state file, machine, gRPC, from start to end."""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...durable import Log
from ...process import raise_descriptor_limit
from ...trust import Address, Place
from ..credentials import ServerCredentials
from ..job.events import Booted, StateRecord
from ..job.job import Job
from ..job.options import JobOptions
from ..pings import Pings
from ..requirements import import_grpc
from ..wire.formats import RECORDS
from .door import listen, server_options
from .driver import LOGGER, Driver
from .guard import Guard
from .service import Service
from .state_file import open_state_file

__all__ = ["Coordinator", "CoordinatorOptions"]


#: Workers that may be connected beyond seats and spares: those that are about to be refused, or have died unseen.
_MORE_WORKERS = 256
#: Calls may end by themselves for so long when the coordinator ends.
_GRACE_S = 0.5


@dataclass(frozen=True)
class CoordinatorOptions:
    """Of a coordinator, beside those of its job.

    Attributes:
        listen: Place at which it listens, HOST:PORT or ``softs://HOST[:PORT]/JOB?token_file=FILE``; port 0 takes a free
            one.
        state: Path of the state file; None: a restart begins a new job.
        credentials: Credentials with which it proves what it is, and knows others.
        pings: Pings by which it notices that a worker does not answer.
        logger: Logger of what happens.
    """

    listen: str = "127.0.0.1:0"
    state: Path | None = None
    credentials: ServerCredentials = field(default_factory=ServerCredentials)
    pings: Pings = field(default_factory=Pings)
    logger: logging.Logger = LOGGER


class Coordinator:
    """A coordinator in the running event loop, from `start` to `stop`.

    Args:
        job: Options of the job.
        options: Options of the coordinator.

    Raises:
        ConfigError: gRPC is not installed, a place or a file is malformed, the place is of another job or token file, or
            other machines could reach the coordinator without encryption or a proof of identity; the state file is in
            use, damaged or of another job.
    """

    def __init__(self, job: JobOptions, options: CoordinatorOptions) -> None:
        import_grpc()
        place = Place.parse(options.listen, "coordinator")
        place.job_or(job.name)
        self._job = job
        self._options = replace(options, credentials=place.credentials_or(options.credentials))
        self._address = Address.parse(place.only_address("coordinator"), "coordinator")
        self._options.credentials.check(self._address)
        self._stack = ExitStack()
        self._server: Any = None
        self._driver: Driver | None = None
        self._service: Service | None = None
        self.port = self._address.port

    @property
    def address(self) -> str:
        """Where it listens, with the port that was chosen."""
        return self._address.target(self.port)

    @property
    def driver(self) -> Driver:
        """The driver of the job, after `start`."""
        assert self._driver is not None
        return self._driver

    async def start(self) -> None:
        """Listen and begin to serve.

        Raises:
            EndpointInUse: another process listens at the address.
            ConfigError: as of the class.
            SoftsError: the operating system refused the state file.
        """
        from grpc import aio

        logging.getLogger("grpc._cython.cygrpc").addFilter(_is_no_cancellation)
        raise_descriptor_limit()
        self._server = aio.server(options=server_options(self._options.pings))
        credentials = self._options.credentials.grpc_server(self._options.logger)
        self.port = listen(self._server, self._address, credentials)
        try:
            self._begin()
            await self._server.start()
        except BaseException:
            await self.stop()
            raise
        self._options.logger.info('coordinator of job "%s" listens at %s', self._job.name, self.address)

    async def wait(self) -> None:
        """Wait for the failure that ends the coordinator.

        Raises:
            SoftsError: the state file cannot be written any more.
            Exception: a defect of the machine.
        """
        await asyncio.shield(self.driver.failure)

    async def stop(self) -> None:
        """End all calls and stop listening. Idempotent."""
        if self._service is not None:
            self._service.close()
        if self._server is not None:
            await self._server.stop(_GRACE_S)
        if self._driver is not None:
            self._driver.close()
        self._stack.close()
        self._server = self._service = None

    def _begin(self) -> None:
        state: Log | None = None
        records: list[StateRecord] = []
        if self._options.state is not None:
            state, records = open_state_file(self._options.state, self._job.name)
            self._stack.callback(state.close)
            if state.dropped:
                self._options.logger.warning(
                    "the last %d bytes of state file %s were no whole record, and were dropped",
                    state.dropped,
                    self._options.state,
                )
        now_s = asyncio.get_running_loop().time()
        boot = secrets.randbits(64)
        machine = Job(self._job, boot, now_s, records)
        if state is not None:
            # Before the first epoch, too, the file tells of which job it is.
            state.append(RECORDS.encode(Booted(self._job.name, boot)))
        self._driver = Driver(machine, state, self._options.logger)
        guard = Guard(self._options.credentials, self.port)
        most = self._job.n_seats + self._job.max_spares + _MORE_WORKERS
        self._service = Service(self._driver, guard, self._job.name, most, self._options.logger)
        self._server.add_generic_rpc_handlers(self._service.handlers())


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """Drop what gRPC logs as an error when a peer disconnects at the moment at which its call ends."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))
