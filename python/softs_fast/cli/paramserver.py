"""``softs-fast paramserver``: runs a parameter server."""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from .. import setup_logging
from ..errors import ConfigError, SoftsError
from .output import say

if TYPE_CHECKING:
    from ..paramserver.job import Job
    from ..paramserver.rounds.options import RunOptions
    from ..paramserver.server.options import ServerOptions
    from ..paramserver.server.service import Service
    from ..paramserver.wire.messages import RunConfig

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> None:
    """Serve until the run is over. The first SIGINT ends it after the open round, the second one at once.

    SIGTERM and SIGHUP end the process, and not the run: workers wait for the next server with the same state file.

    Raises:
        ConfigError: an option is wrong, a package is not installed, or a file cannot be used.
        EndpointInUse: another process listens at the address.
        SoftsError: the run has failed.
    """
    from ..paramserver.requirements import import_uvicorn
    from ..paramserver.server.listening import listen

    import_uvicorn()
    setup_logging(arguments.log_level)
    options = _server_options(arguments)
    # Workers of a server before this one connect at once, and wait while torch is loaded.
    with listen(options) as listener:
        from ..paramserver.job import load_job

        run_options = _run_options(arguments)
        config = _config(arguments, run_options)
        asyncio.run(_serve(load_job(arguments.job), run_options, config, options, listener))


async def _serve(
    job: Job, run: RunOptions, config: RunConfig, options: ServerOptions, listener: socket.socket
) -> None:
    from ..paramserver.server.owner_file import OwnerAccess, write_owner
    from ..paramserver.server.service import Service
    from ..paramserver.server.sessions import owner_key

    service = Service(job, run, config, options, listener)
    # Before any program is told that it serves.
    ended = _watch_signals(service)
    try:
        await service.start()
        access = OwnerAccess(service.local_invite, owner_key(service.owner_secret, service.invite.job))
        write_owner(options.state, access)
        goes_on = " goes on" if service.is_restart else ""
        say(
            f"run{goes_on} at version {service.run.version} of {run.rounds}\n"
            f"invite {service.invite}\n"
            f"page {service.url}/#{access.key.hex()}"
        )
        waits: list[asyncio.Future[object]] = [
            asyncio.ensure_future(service.wait()),
            asyncio.ensure_future(ended.wait()),
        ]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for one in waits:
            one.cancel()
        if waits[0].done():
            waits[0].result()
    finally:
        await service.close()
    if not service.run.is_over:
        return
    status = service.driver.status()
    say(f"{status.text}; version {status.version}, {options.output}")
    if status.is_failure:
        raise SoftsError(status.text)
    if service.driver.file_trouble is not None:
        raise SoftsError(service.driver.file_trouble)


def _watch_signals(service: Service) -> asyncio.Event:
    """Have signals end the run or the process; return what is set when the process shall end."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    n_interrupts = 0

    def interrupt() -> None:
        nonlocal n_interrupts
        n_interrupts += 1
        if n_interrupts > 2:
            ended.set()
        else:
            service.stop("interrupted", at_once=n_interrupts > 1)

    for number, handler in (
        (signal.SIGINT, interrupt),
        (signal.SIGTERM, ended.set),
        (signal.SIGHUP, ended.set),
    ):
        if signal.getsignal(number) != signal.SIG_IGN:
            loop.add_signal_handler(number, handler)
    return ended


def _server_options(arguments: argparse.Namespace) -> ServerOptions:
    from ..paramserver.server.options import ServerOptions, TlsFiles

    host, colon, port = arguments.listen.rpartition(":")
    if not (colon and host and port.isdigit()):
        raise ConfigError(f"--listen is {arguments.listen!r}; need HOST:PORT, such as 127.0.0.1:8000")
    if (arguments.tls_cert is None) != (arguments.tls_key is None):
        raise ConfigError("a certificate needs its key: give both, --tls-cert and --tls-key")
    tls = None
    state: Path = arguments.state
    if arguments.tls_cert is not None:
        if arguments.tls is not None:
            raise ConfigError("--tls auto makes a certificate; leave it away with --tls-cert")
        tls = TlsFiles(arguments.tls_cert, arguments.tls_key)
    elif arguments.tls is not None:
        tls = TlsFiles(
            state.with_name(f"{state.name}.cert.pem"), state.with_name(f"{state.name}.key.pem"), True
        )
    output = arguments.output or Path(f"trained_model.{'safetensors' if arguments.safetensors else 'pth'}")
    return ServerOptions(
        host.strip("[]"),
        int(port),
        arguments.url,
        tls,
        arguments.allow_plain,
        state,
        output,
        arguments.safetensors,
        arguments.evaluate_every,
        arguments.stop_after,
        arguments.lower_is_better,
        arguments.upload_memory,
        arguments.norm_guard,
    )


def _run_options(arguments: argparse.Namespace) -> RunOptions:
    from ..paramserver.rounds.options import RunOptions

    quorum = arguments.quorum
    if quorum is not None and quorum != "world" and not quorum.isdigit():
        raise ConfigError(f"--quorum is {quorum!r}; need a number, or the word world")
    scale = arguments.scale or ("none" if arguments.local_steps else "world")
    return RunOptions(
        arguments.world,
        arguments.rounds,
        arguments.mode,
        quorum=None if quorum is None else arguments.world if quorum == "world" else int(quorum),
        round_samples=arguments.round_samples,
        round_deadline_s=arguments.round_deadline,
        slack=arguments.slack,
        buffer=arguments.buffer,
        max_age=arguments.max_age,
        scale_by_world=scale == "world",
        lease_s=arguments.lease,
        dataset_size=arguments.samples,
        epochs=arguments.epochs,
        save_every=arguments.save_every,
        max_workers=max(arguments.max_workers, arguments.world),
    )


def _config(arguments: argparse.Namespace, run: RunOptions) -> RunConfig:
    from ..paramserver.server.service import fitting
    from ..paramserver.wire.messages import RunConfig

    if arguments.batch < 1 or arguments.local_steps < 0 or not 0 < arguments.top_k <= 1 or arguments.clip < 0:
        raise ConfigError(
            "--batch must be 1 or more, --local-steps and --clip 0 or more, --top-k above 0 and at most 1"
        )
    config = RunConfig(
        target=run.rounds,
        batch_size=arguments.batch,
        local_steps=arguments.local_steps,
        codec=arguments.codec,
        top_k=arguments.top_k,
        planes=not arguments.no_planes,
        pull=arguments.pull,
        seed=arguments.seed,
        clip_norm=arguments.clip,
        sync_buffers=not arguments.no_buffers,
    )
    return fitting(config, run)
