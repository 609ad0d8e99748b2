"""``softs-fast coordinator``: runs a coordinator in the foreground, or asks one that runs."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import signal
from collections.abc import Coroutine
from typing import Any

from .. import setup_logging
from ..coordination.credentials import ClientCredentials, ServerCredentials
from ..coordination.health.readiness import coordinator_reason, readiness_page
from ..coordination.job.events import Drain, End, Evict, Resize
from ..coordination.job.options import JobOptions
from ..coordination.job.status import Status
from ..coordination.launcher import launched_job
from ..coordination.metrics import render_metrics
from ..coordination.pings import Pings
from ..coordination.requirements import import_grpc
from ..errors import ConfigError
from ..monitoring.text_server import Page, PageServer, TextServer
from .output import say
from .table import count, plain, rows_of

__all__ = ["administer", "render", "run", "status", "watch"]

#: A status for metrics takes so long at most.
_METRICS_S = 2.0
#: Fences that the text shows.
_MOST_FENCES = 5


def run(arguments: argparse.Namespace) -> None:
    """Run a coordinator until a signal arrives.

    Raises:
        EndpointInUse: another process listens at the address, or at the one for metrics.
        ConfigError: an option is out of range or contradicts another one; gRPC is not installed; a file of credentials
            or the state file cannot be used; other machines could reach it without TLS or a proof of identity.
        SoftsError: the state file cannot be written.
    """
    import_grpc()
    setup_logging(arguments.log_level)
    asyncio.run(_serve(arguments, _job(arguments)))


def status(arguments: argparse.Namespace) -> None:
    """Print the status of a coordinator.

    Raises:
        PeerLost: no coordinator answers.
        ConfigError: the address or a file is malformed, or the caller may not ask.
    """
    from ..coordination.session.calls import CoordinatorClient

    with CoordinatorClient(arguments.address, _credentials(arguments)) as client:
        _show(client.status(), arguments.json)


def watch(arguments: argparse.Namespace) -> None:
    """Print the status of a coordinator after each change, until a signal arrives.

    Raises:
        PeerLost: no coordinator answers, or it has ended.
        ConfigError: the address or a file is malformed, or the caller may not ask.
    """
    from ..coordination.session.calls import CoordinatorClient

    with CoordinatorClient(arguments.address, _credentials(arguments)) as client:
        for seen in client.watch():
            _show(seen, arguments.json, "" if arguments.json else "\n")


def administer(arguments: argparse.Namespace) -> None:
    """Have a coordinator do something, and print what it did.

    Raises:
        PeerLost: no coordinator answers.
        ConfigError: the address or a file is malformed, or the caller is no administrator.
        WireError: it cannot be done.
    """
    from ..coordination.session.calls import CoordinatorClient

    match arguments.action:
        case "evict":
            action: Evict | Drain | Resize | End = Evict(arguments.seat, arguments.why)
        case "drain":
            action = Drain(arguments.seat, arguments.why)
        case "resize":
            action = Resize(arguments.min, arguments.max)
        case _:
            action = End(arguments.why)
    with CoordinatorClient(arguments.address, _credentials(arguments)) as client:
        done = client.administer(action)
    say("\n".join(map(plain, done)) or "done")


def render(status: Status) -> str:
    """Return a status as text."""
    lines = [
        f'job "{plain(status.name)}" is {status.phase} for {_duration(status.since_s)}, epoch {status.epoch}, '
        f"{count(status.size, 'member')}",
        plain(status.reason),
    ]
    if status.seats:
        rows = [
            [
                "spare" if seat.seat is None else str(seat.seat),
                plain(seat.worker_id),
                plain(seat.address) or "-",
                plain(seat.text),
                str(seat.step),
            ]
            for seat in status.seats
        ]
        lines += ["", *rows_of("SEAT WORKER ADDRESS STATE STEP", rows, n_left=4)]
    if status.fences:
        lines += ["", "last fences, the newest last:"]
        lines += [
            f"  epoch {fence.epoch}, {fence.cause}{' (planned)' if fence.planned else ''}: {plain(fence.text)}"
            for fence in status.fences[-_MOST_FENCES:]
        ]
    if status.checkpoint is not None:
        done = status.checkpoint
        lines += ["", f"last complete checkpoint: step {done.step} of epoch {done.epoch}, {plain(done.path)}"]
    return "\n".join(lines)


def _job(arguments: argparse.Namespace) -> JobOptions:
    if (arguments.size is None) == (arguments.min is None and arguments.max is None):
        raise ConfigError("how many members? give --size N, or --min N and --max N")
    low, high = (arguments.size or getattr(arguments, name) for name in ("min", "max"))
    if low is None or high is None:
        raise ConfigError("--min and --max belong together: give both, or --size N")
    return JobOptions(
        arguments.name or launched_job(),
        low,
        high,
        arguments.unit,
        arguments.block,
        arguments.spares,
        window_s=arguments.window,
        rejoin_s=arguments.rejoin,
        grace_s=arguments.grace,
        stall_s=arguments.stall,
        evict_stalled=arguments.evict_stalled,
        restarts=arguments.restarts,
        # Pings fail after two of them.
        lost_after_s=2 * arguments.ping + 1.0,
    )


def _credentials(arguments: argparse.Namespace) -> ClientCredentials:
    return ClientCredentials(arguments.ca, arguments.cert, arguments.key, arguments.token)


def _show(status: Status, as_json: bool, more: str = "") -> None:
    say((json.dumps(dataclasses.asdict(status)) if as_json else render(status)) + more)


async def _serve(arguments: argparse.Namespace, job: JobOptions) -> None:
    from ..coordination.server.serving import Coordinator, CoordinatorOptions

    admins = tuple(arguments.admin or ServerCredentials.admins)
    credentials = ServerCredentials(arguments.cert, arguments.key, arguments.ca, arguments.tokens, admins)
    pings = Pings(arguments.ping, arguments.ping)
    coordinator = Coordinator(job, CoordinatorOptions(arguments.listen, arguments.state, credentials, pings))
    loop = asyncio.get_running_loop()

    def present() -> Status | None:
        async def read() -> Status:
            return coordinator.driver.status()

        try:
            return asyncio.run_coroutine_threadsafe(read(), loop).result(_METRICS_S)
        except TimeoutError:
            return None

    def alive() -> Page:
        return readiness_page("" if present() is not None else coordinator_reason(None))

    def ready() -> Page:
        return readiness_page(coordinator_reason(present()))

    servers: list[tuple[str, PageServer]] = []
    if arguments.prometheus is not None:
        servers.append(("metrics", TextServer(lambda: render_metrics(present()), arguments.prometheus)))
    if arguments.health is not None:
        pages = {"/readyz": ready, "/healthz": alive}
        remote = arguments.health_remote
        servers.append(("health", PageServer(pages, arguments.health, what="health", allow_remote=remote)))
    with contextlib.ExitStack() as stack:
        await coordinator.start()
        try:
            lines = [f"coordinator {coordinator.address}"]
            for name, server in servers:
                stack.enter_context(server)
                lines.append(f"{name} {server.url}")
            say("\n".join(lines))
            await _until_signal(loop, coordinator.wait())
        finally:
            await coordinator.stop()


async def _until_signal(loop: asyncio.AbstractEventLoop, failure: Coroutine[Any, Any, None]) -> None:
    """Wait for a signal that would end the command, or for the failure of the coordinator."""
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            loop.add_signal_handler(number, ended.set)
    waits: set[asyncio.Future[Any]] = {asyncio.ensure_future(ended.wait()), asyncio.ensure_future(failure)}
    done, left = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for one in left:
        one.cancel()
    for one in done:
        one.result()


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
