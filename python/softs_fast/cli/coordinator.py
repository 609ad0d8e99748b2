"""``softs-fast coordinator``: runs a coordinator in the foreground, or asks one that runs."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from .. import records
from ..errors import ConfigError
from .options import PLACE, AddParser, Run, command, group, member, natural, option, seconds
from .table import count, plain, rows_of, say

if TYPE_CHECKING:
    from ..coordination.job import JobOptions, Status
    from ..coordination.session import CoordinatorClient
    from .live import Live

__all__ = ["add_commands", "add_identity", "opened", "render", "show", "watch"]

_EPILOG = """\
examples:
  softs-fast coordinator run --world-size 4
  softs-fast coordinator run --min-workers 2 --max-workers 8 --state /shared/job.state --job my-job
  softs-fast coordinator run --world-size 4 --listen 'softs://0.0.0.0/my-job?token_file=job.token'

It tells workers which of them are members, and at once when one is gone. docs/coordination.md tells more."""

#: A status for metrics takes so long at most.
_METRICS_S = 2.0
#: Fences that the text shows.
_MOST_FENCES = 5


def add_commands(add_parser: AddParser) -> None:
    """Add the commands of a coordinator."""
    add = group(add_parser, "coordinator", "run the coordinator of a training, or ask one that runs")
    _add_run(command(add, "run", "run a coordinator until SIGINT or SIGTERM", _run, _EPILOG, endless=True))
    for name, summary, run in (
        ("status", "print what the job does, and what it waits for", show),
        ("watch", "print the status after each change", watch),
    ):
        option(_asking(add, name, summary, run, endless=run is watch), "--json")
    for name, summary in (
        ("evict", "take a seat away from its worker, at once"),
        ("drain", "have the worker of a seat leave at the end of its step"),
    ):
        parser = _asking(add, name, summary)
        parser.add_argument("seat", type=natural, metavar="SEAT", help="number of the seat")
        _add_reason(parser)
    parser = _asking(add, "resize", "change how many members there are")
    parser.add_argument("min", type=member, metavar="MIN", help="smallest number of members")
    parser.add_argument("max", type=member, metavar="MAX", help="largest number of members")
    _add_reason(_asking(add, "end", "end the job"))


def add_identity(parser: Any) -> None:
    """Add the options with which a caller proves what it is to a parser or a group of options."""
    for name in ("--tls-ca", "--tls-cert", "--tls-key", "--token-file"):
        option(parser, name)


def show(arguments: argparse.Namespace) -> None:
    """Print the status of a coordinator.

    Raises:
        PeerLost: no coordinator answers.
        ConfigError: the address or a file is malformed, or the caller may not ask.
    """
    with _client(arguments) as client:
        _print(client.status(), arguments.json)


def watch(arguments: argparse.Namespace) -> None:
    """Print the status of a coordinator after each change, until a signal arrives.

    Raises:
        PeerLost: no coordinator answers, or it has ended.
        ConfigError: the address or a file is malformed, or the caller may not ask.
    """
    with _client(arguments) as client:
        for seen in client.watch():
            _print(seen, arguments.json, "" if arguments.json else "\n")


@contextlib.contextmanager
def opened(arguments: argparse.Namespace) -> Iterator[Callable[[], Live]]:
    """Return a function that looks at the coordinator of `arguments.target`, for a page."""
    from .live import Chart, Live

    arguments.address = arguments.target
    with _client(arguments) as client:

        def look() -> Live:
            seen = client.status()
            charts = (
                Chart("samples trained", "/s", seen.samples_per_s),
                Chart("of the time steps wait for samples", "%", 100 * seen.starvation),
                Chart("ranks", "", float(seen.size)),
            )
            return Live(render(seen), charts)

        yield look


def render(status: Status) -> str:
    """Return a status as text."""
    lines = [
        f'job "{plain(status.name)}" is {status.phase} for {_duration(status.since_s)}, epoch {status.epoch}, '
        f"{count(status.size, 'member')}",
        plain(status.reason),
    ]
    # A coordinator knows nothing of the samples of other trainings than a `Job`.
    is_live = status.samples_per_s > 0 or status.starvation > 0
    if is_live:
        share = f"steps wait for samples for {status.starvation:.0%} of the time"
        lines.append(f"{status.samples_per_s:,.0f} samples/s; {share}")
    if status.saved is not None:
        saved = status.saved
        age = f"{_duration(saved.age_s)} ago, in {saved.write_s:.1f} s"
        lines.append(f"last checkpoint: step {saved.step}, written {age}")
    if status.seats:
        rows = [
            [
                "spare" if seat.seat is None else str(seat.seat),
                plain(seat.worker_id),
                plain(seat.address) or "-",
                plain(seat.text),
                str(seat.step),
                *([f"{seat.starvation:.0%}"] if is_live else []),
            ]
            for seat in status.seats
        ]
        lines += ["", *rows_of("SEAT WORKER ADDRESS STATE STEP" + " STARVED" * is_live, rows, n_left=4)]
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


def _add_run(parser: argparse.ArgumentParser) -> None:
    size = parser.add_argument_group("size of the job")
    option(size, "--world-size")
    option(size, "--min-workers", "smallest number of workers that an epoch trains with", type=member)
    option(size, "--max-workers")
    option(size, "--multiple-of", "number of which the members are a multiple", type=member, default=1)
    option(size, "--block-size", "number of seats that belong together", type=member, default=1)
    option(size, "--max-spares", "largest number of workers that wait for a seat", type=natural, default=64)
    job = parser.add_argument_group("job")
    option(
        job, "--job", "name of the job; workers of other jobs are refused", metavar="NAME",
        shown="SLURM's job, or else job",
    )  # fmt: skip
    option(job, "--state")
    text = "seconds that an epoch waits for workers that could be members"
    option(job, "--form-timeout", text, type=seconds, default=30.0)
    option(job, "--rejoin-timeout", default=600.0)
    text = "seconds that members have to connect to a restarted coordinator"
    option(job, "--reconnect-timeout", text, type=seconds, default=10.0)
    text = "seconds that a seat may be a step behind before an alarm names it"
    option(job, "--stalled-after", text, type=seconds, default=300.0)
    option(job, "--evict-stalled", "evict stalled workers", action="store_true", shown="only warn")
    text = "largest number of restarts of one seat within an hour, however its process has ended"
    option(job, "--max-restarts", text, type=natural, shown="no limit")
    net = parser.add_argument_group("address and identity")
    option(net, "--listen", default="127.0.0.1:29401")
    option(net, "--lost-after", default=2.0)
    add_identity(net)
    text = "name in a certificate that may evict, drain, resize and end; may be given several times"
    option(net, "--admin", text, action="append", metavar="NAME", shown="admin")
    pages = parser.add_argument_group("pages")
    option(pages, "--metrics")
    option(pages, "--health", "address to serve /healthz and /readyz at, over HTTP", metavar="HOST:PORT")
    option(pages, "--allow-insecure")
    option(parser, "--log-level", default="info")


def _asking(
    add: AddParser, name: str, summary: str, run: Run | None = None, *, endless: bool = False
) -> argparse.ArgumentParser:
    parser = command(add, name, summary, run or _administer, endless=endless)
    parser.add_argument("address", metavar="PLACE", help=f"place of the coordinator, HOST:PORT or {PLACE}")
    add_identity(parser)
    parser.set_defaults(action=name)
    return parser


def _add_reason(parser: argparse.ArgumentParser) -> None:
    option(parser, "--reason", default="asked for by an administrator")


def _run(arguments: argparse.Namespace) -> None:
    """Run a coordinator until a signal arrives.

    Raises:
        EndpointInUse: another process listens at the address, or at the one for metrics.
        ConfigError: an option is out of range or contradicts another one; gRPC is not installed; a file of credentials
            or the state file cannot be used; other machines could reach it without TLS or a proof of identity.
        SoftsError: the state file cannot be written.
    """
    from .. import setup_logging
    from ..coordination import import_grpc
    from ..trust import Place

    import_grpc()
    setup_logging(arguments.log_level)
    arguments.job = Place.parse(arguments.listen, "coordinator").job_or(arguments.job)
    asyncio.run(_serve(arguments, _job(arguments)))


def _administer(arguments: argparse.Namespace) -> None:
    """Have a coordinator do something, and print what it did.

    Raises:
        PeerLost: no coordinator answers.
        ConfigError: the address or a file is malformed, or the caller is no administrator.
        WireError: it cannot be done.
    """
    from ..coordination.job import Drain, End, Evict, Resize

    match arguments.action:
        case "evict":
            action: Evict | Drain | Resize | End = Evict(arguments.seat, arguments.reason)
        case "drain":
            action = Drain(arguments.seat, arguments.reason)
        case "resize":
            action = Resize(arguments.min, arguments.max)
        case _:
            action = End(arguments.reason)
    with _client(arguments) as client:
        done = client.administer(action)
    say("\n".join(map(plain, done)) or "done")


def _client(arguments: argparse.Namespace) -> CoordinatorClient:
    from ..coordination import ClientCredentials
    from ..coordination.session import CoordinatorClient

    given = arguments.tls_cert, arguments.tls_key, arguments.tls_ca, arguments.token_file
    return CoordinatorClient(arguments.address, ClientCredentials(*given))


def _print(status: Status, as_json: bool, more: str = "") -> None:
    say((json.dumps(records.plain(status)) if as_json else render(status)) + more)


def _job(arguments: argparse.Namespace) -> JobOptions:
    from ..coordination import launched_job
    from ..coordination.job import JobOptions

    size, low, high = arguments.world_size, arguments.min_workers, arguments.max_workers
    if (size is None) == (low is None and high is None):
        raise ConfigError("how many members? give --world-size N, or --min-workers N and --max-workers N")
    low, high = size or low, size or high
    if low is None or high is None:
        raise ConfigError("--min-workers and --max-workers belong together: give both, or --world-size N")
    return JobOptions(
        arguments.job or launched_job(),
        low,
        high,
        arguments.multiple_of,
        arguments.block_size,
        arguments.max_spares,
        form_timeout_s=arguments.form_timeout,
        rejoin_timeout_s=arguments.rejoin_timeout,
        reconnect_timeout_s=arguments.reconnect_timeout,
        stalled_after_s=arguments.stalled_after,
        evict_stalled=arguments.evict_stalled,
        max_restarts=arguments.max_restarts,
        # The end of a connection is noticed a little after its last ping.
        lost_after_s=arguments.lost_after + 1.0,
    )


async def _serve(arguments: argparse.Namespace, job: JobOptions) -> None:
    from ..coordination import Pings, ServerCredentials, render_metrics
    from ..coordination.health import coordinator_reason, readiness_page
    from ..coordination.server import Coordinator, CoordinatorOptions
    from ..monitoring import Page, PageServer, TextServer

    admins = tuple(arguments.admin or ServerCredentials.admins)
    credentials = ServerCredentials(
        arguments.tls_cert, arguments.tls_key, arguments.tls_ca, arguments.token_file, admins
    )
    # A stopped peer is noticed after a ping that gets no answer.
    pings = Pings(arguments.lost_after / 2, arguments.lost_after / 2)
    coordinator = Coordinator(job, CoordinatorOptions(arguments.listen, arguments.state, credentials, pings))
    loop = asyncio.get_running_loop()
    remote = arguments.allow_insecure

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
    if arguments.metrics is not None:
        text = TextServer(lambda: render_metrics(present()), arguments.metrics, allow_remote=remote)
        servers.append(("metrics", text))
    if arguments.health is not None:
        pages = {"/readyz": ready, "/healthz": alive}
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
