"""``softs-fast paramserver``: runs a parameter server, or shows one that runs and tells it what to do."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from .. import records
from ..errors import ConfigError, SoftsError
from . import paramserver_worker
from .options import AddParser, between, command, group, natural, option, positive, seconds
from .paramserver_worker import options_of
from .table import count, plain, rows_of, say

if TYPE_CHECKING:
    from ..paramserver import Job, OwnerClient, RunConfig, RunOptions, ServerOptions, Service, Status

__all__ = ["add_commands", "render", "show", "watch"]

_EPILOG = """\
examples:
  softs-fast paramserver run digits:job --world-size 2 --rounds 50 --batch-size 32
  softs-fast paramserver run digits:job --world-size 4 --rounds 1000 --listen 0.0.0.0:8000 --tls-self-signed
  softs-fast paramserver run digits:job --world-size 4 --rounds 1000 --listen 'softs://0.0.0.0?token_file=job.token'
  softs-fast paramserver run digits:job --world-size 2 --rounds 50 --public-url https://some.tunnel.example

It prints the invite with which workers are started, and the owner's page. Started again with the same --state, it resumes
from the file. docs/paramserver.md tells more. It needs uvicorn: pip install 'softs-fast[server]'."""

_EVALUATE_EPILOG = """\
examples:
  softs-fast paramserver evaluate digits:job
  softs-fast paramserver evaluate digits:job trained_model.best.pth"""

_KICK_EPILOG = """\
examples:
  softs-fast paramserver kick 3f0a... --state /data/run.state

The status shows the ids of the workers."""

_STATE = Path("paramserver.state")
_MODEL = Path("trained_model.pth")
#: A request of `watch` is answered after this time at the latest, seconds.
_WAIT_S = 20.0


def add_commands(add_parser: AddParser) -> None:
    """Add the commands of a parameter server, its owner and its workers."""
    add = group(add_parser, "paramserver", "train a model with workers on the internet")
    _add_run(command(add, "run", "run a parameter server until its training is done", _run, _EPILOG))
    paramserver_worker.add_command(add)
    for name, summary, run in (
        ("status", "print the state of a run and of its workers", show),
        ("watch", "print the status after each change", watch),
        ("start", "start a run before all its workers are there", _control),
        ("pause", "pause a run", _control),
        ("resume", "resume a run that is paused", _control),
        ("kick", "remove a worker for good", _control),
        ("stop", "end a run after its open round", _control),
    ):
        epilog = _KICK_EPILOG if name == "kick" else ""
        parser = command(add, name, summary, run, epilog, endless=run is watch)
        if name == "kick":
            parser.add_argument("worker_id", metavar="WORKER_ID", help="id of the worker")
        option(parser, "--state", default=_STATE)
        if run is _control:
            parser.set_defaults(action=name, worker_id="")
        else:
            option(parser, "--json")
    text = "evaluate a model that a parameter server has trained"
    parser = command(add, "evaluate", text, _evaluate, _EVALUATE_EPILOG)
    parser.add_argument("job", metavar="MODULE:JOB", help="job with an `evaluate`")
    parser.add_argument(
        "file", type=Path, nargs="?", default=_MODEL, metavar="FILE",
        help="file that the server has written (default: %(default)s)",
    )  # fmt: skip


def show(arguments: argparse.Namespace) -> None:
    """Print the status of a server.

    Raises:
        ConfigError: the owner's file cannot be used, or the server refuses.
        PeerLost: no server answers.
    """
    with _client(arguments) as client:
        _print(client.status(), arguments.json)


def watch(arguments: argparse.Namespace) -> None:
    """Print the status of a server after each change, until a signal arrives.

    Raises:
        ConfigError: the owner's file cannot be used, or the server refuses.
        PeerLost: no server answers.
    """
    with _client(arguments) as client:
        since = -1
        while True:
            status = client.status(since, _WAIT_S)
            since = since if status is None else status.serial
            _print(status, arguments.json)


def render(status: Status) -> str:
    """Return a status as text."""
    loss = "" if status.loss is None else f", loss {status.loss:.4g}"
    metric = "" if status.metric is None else f", evaluation {status.metric:.4g}"
    lines = [
        f"version {status.timeline}.{status.version} of {status.rounds}, {status.state}{loss}{metric}",
        plain(status.waiting_for),
        f"{count(len(status.members), 'worker')} of {status.world_size}",
    ]
    if status.members:
        rows = [
            [
                str(one.rank),
                plain(one.name),
                one.worker_id,
                one.state,
                str(one.counted),
                str(one.stale),
                "-" if one.loss is None else f"{one.loss:.4g}",
                f"{one.uploaded_bytes * 100 // one.upload_bytes} %" if one.upload_bytes else "-",
            ]
            for one in status.members
        ]
        lines += ["", *rows_of("RANK WORKER ID STATE COUNTED STALE LOSS UPLOAD", rows, n_left=4)]
    return "\n".join(lines)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="MODULE:JOB", help="job to train; workers load the same file")
    run = parser.add_argument_group("run")
    option(run, "--world-size", required=True)
    option(run, "--rounds", "number of steps of the whole run", type=positive, required=True)
    option(run, "--batch-size", "samples of a worker's step", type=positive, default=32)
    text = "all push, then a step; each push is a step, with bounded lead; buffered pushes"
    option(run, "--mode", text, choices=("bsp", "ssp", "async"), default="bsp")
    option(run, "--quorum", "pushes that a round needs", metavar="N|world", shown="half of the world")
    text = "number of samples with which a round closes at once"
    option(run, "--round-samples", text, type=positive)
    text = "seconds after which a round with a quorum closes"
    option(run, "--round-timeout", text, type=seconds, shown="the times of earlier pushes decide")
    option(run, "--max-lead", "pushes that a worker may lead by in mode ssp", type=natural, default=0)
    option(run, "--pushes-per-step", "number of pushes of a step in mode async", type=positive, default=1)
    option(run, "--max-age", "versions that a push may be old in mode async", type=natural, default=16)
    option(
        run, "--scale-rate", "multiply the learning rate by the number of workers averaged",
        choices=("world", "none"), shown="world; none with --local-steps",
    )  # fmt: skip
    option(run, "--local-steps", "steps of a worker for one push", type=natural, default=0)
    norm = between(float, 0, 1 << 30)
    option(run, "--clip-norm", "greatest norm of a push; 0 for any", type=norm, metavar="NORM", default=0.0)
    text = "number of median norms of recent pushes to which a push is scaled down; 0 takes any"
    option(run, "--norm-guard", text, type=norm, metavar="TIMES", default=10.0)
    option(run, "--lost-after", default=20.0)
    option(run, "--max-workers", default=256)
    data = parser.add_argument_group("data")
    option(
        data, "--dataset-size", "number of samples, of which the server hands out ranges, each once per epoch",
        type=positive, default=0, shown="each worker takes those of its rank",
    )  # fmt: skip
    option(data, "--epochs", "number of passes over the data, with --dataset-size", type=positive)
    option(data, "--seed", "seed of the order of samples", type=natural, default=0)
    wire = parser.add_argument_group("wire")
    option(wire, "--push-codec", default="bf16")
    option(wire, "--top-k-fraction", default=0.01)
    option(wire, "--pull-codec", "codec of weights; f32 is exact", choices=("f32", "bf16"), default="f32")
    option(wire, "--no-compression", "send elements as they are", action="store_true")
    text = "keep each worker's own buffers, such as BatchNorm's, instead of the average"
    option(wire, "--no-buffer-sync", text, action="store_true")
    net = parser.add_argument_group("address")
    option(net, "--listen", default="127.0.0.1:8000")
    text = "URL of the tunnel or proxy in front of the server, for the invite"
    option(net, "--public-url", text, metavar="URL")
    option(net, "--tls-self-signed", "make a certificate, which the invite pins", action="store_true")
    for name in ("--token-file", "--tls-cert", "--tls-key", "--allow-insecure"):
        option(net, name)
    files = parser.add_argument_group("files")
    option(files, "--state", default=_STATE)
    option(files, "--save-every", "steps between two writes of the state", type=positive, default=1)
    option(files, "--output", default=_MODEL)
    text = "memory for pushes and uploads"
    option(files, "--max-upload-bytes", text, type=positive, metavar="BYTES", default=8 << 30)
    evaluation = parser.add_argument_group("evaluation")
    text = "steps between two evaluations; 0 for none before the end"
    option(evaluation, "--evaluate-every", text, type=natural, default=0)
    text = "number of evaluations without a better result that end the run"
    option(evaluation, "--stop-after-evaluations", text, type=positive)
    text = "take the lower one of two results as the better one"
    option(evaluation, "--lower-is-better", text, action="store_true")
    option(parser, "--log-level", default="info")


def _run(arguments: argparse.Namespace) -> None:
    """Serve until the run is over. The first SIGINT ends it after the open round, the second one at once.

    SIGTERM and SIGHUP end the process, and not the run: workers wait for the next server with the same state file.

    Raises:
        ConfigError: an option is wrong, a package is not installed, or a file cannot be used.
        EndpointInUse: another process listens at the address.
        SoftsError: the run has failed.
    """
    from .. import setup_logging
    from ..paramserver import import_package, listen

    import_package("uvicorn")
    setup_logging(arguments.log_level)
    options = _server_options(arguments)
    # Workers of a server before this one connect at once, and wait while torch is loaded.
    with listen(options) as listener:
        from ..paramserver import load_job

        run, config = _run_options(arguments), _config(arguments)
        asyncio.run(_serve(load_job(arguments.job), run, config, options, listener))


def _control(arguments: argparse.Namespace) -> None:
    """Have a server do something.

    Raises:
        ConfigError: the owner's file cannot be used, or the server refuses.
        PeerLost: no server answers.
    """
    from ..paramserver import Control

    with _client(arguments) as client:
        client.control(Control(arguments.action, arguments.worker_id))
    say("done")


def _evaluate(arguments: argparse.Namespace) -> None:
    """Print the result of the job's `evaluate`.

    Raises:
        ConfigError: the job has none, or the file cannot be used.
    """
    import torch

    from ..paramserver import load_job, read_model

    job = load_job(arguments.job)
    if job.evaluate is None:
        raise ConfigError(f"the job {arguments.job} has no evaluate; give it a function of the module")
    module = job.model()
    state = read_model(arguments.file)
    try:
        module.load_state_dict(state)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(
            f"{arguments.file} is not of the model of {arguments.job}: {str(error).splitlines()[0]}"
        ) from None
    module.eval()
    with torch.no_grad():
        say(f"{float(job.evaluate(module)):.6g}")


def _client(arguments: argparse.Namespace) -> OwnerClient:
    from ..paramserver import OwnerAccess, OwnerClient, read_owner

    # A file, or the URL of the owner's page.
    state: Path | str = arguments.state
    return OwnerClient(OwnerAccess.of_page(state) if isinstance(state, str) else read_owner(state))


def _print(status: Status | None, as_json: bool) -> None:
    if status is not None:
        say(json.dumps(records.plain(status)) if as_json else render(status))


async def _serve(
    job: Job, run: RunOptions, config: RunConfig, options: ServerOptions, listener: socket.socket
) -> None:
    from ..paramserver import OwnerAccess, Service, owner_key, write_owner

    service = Service(job, run, config, options, listener)
    # Before any program is told that it serves.
    ended = _watch_signals(service)
    try:
        await service.start()
        access = OwnerAccess(service.local_invite, owner_key(service.owner_secret, service.invite.job))
        write_owner(options.state, access)
    except BaseException:
        await service.close()
        raise
    goes_on = " goes on" if service.is_restart else ""
    lines = [
        f"run{goes_on} at version {service.run.version} of {run.rounds}",
        f"invite {service.invite}",
    ]
    if service.invite.place is None:  # A browser has no certificate of the token.
        lines.append(f"page {service.url}/#{access.key.hex()}")
    say("\n".join(lines))
    await service.serve_until(ended)
    if not service.run.is_over:
        return
    status = service.driver.status()
    say(f"{status.waiting_for}; version {status.version}, {options.output}")
    if status.is_failure:
        raise SoftsError(status.waiting_for)
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
            service.stop_run("interrupted", at_once=n_interrupts > 1)

    for number, handler in (
        (signal.SIGINT, interrupt),
        (signal.SIGTERM, ended.set),
        (signal.SIGHUP, ended.set),
    ):
        if signal.getsignal(number) != signal.SIG_IGN:
            loop.add_signal_handler(number, handler)
    return ended


def _server_options(arguments: argparse.Namespace) -> ServerOptions:
    from ..paramserver import ServerOptions
    from ..trust import TlsFiles

    state, self_signed = arguments.state, arguments.tls_self_signed
    tls = TlsFiles(arguments.tls_cert, arguments.tls_key, None, arguments.token_file)
    if self_signed and tls.has_certificate:
        raise ConfigError(
            "--tls-self-signed makes a certificate; leave it away with --tls-cert or --token-file"
        )
    if self_signed:
        cert, key = (state.with_name(f"{state.name}.{one}.pem") for one in ("cert", "key"))
        tls = TlsFiles(cert, key, self_signed=True)
    return options_of(ServerOptions, arguments, tls=tls)


def _run_options(arguments: argparse.Namespace) -> RunOptions:
    from ..paramserver import RunOptions

    quorum = arguments.quorum
    if quorum is not None and quorum != "world" and not quorum.isdigit():
        raise ConfigError(f"--quorum is {quorum!r}; need a number, or the word world")
    return options_of(
        RunOptions,
        arguments,
        quorum=None if quorum is None else arguments.world_size if quorum == "world" else int(quorum),
        scale_rate=arguments.scale_rate or ("none" if arguments.local_steps else "world"),
        max_workers=max(arguments.max_workers, arguments.world_size),
    )


def _config(arguments: argparse.Namespace) -> RunConfig:
    from ..paramserver import RunConfig

    compression, buffer_sync = not arguments.no_compression, not arguments.no_buffer_sync
    return options_of(RunConfig, arguments, compression=compression, buffer_sync=buffer_sync)
