"""``softs-fast broker``, ``worker`` and ``run``: a market in the foreground, or beside another command."""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ..errors import ConfigError, FleetError, PeerLost
from ..process import join
from .host import add_link, joined
from .options import AddParser, between, command, option
from .table import say

if TYPE_CHECKING:
    from ..fleet import Fleet, NamedFactory, PrivateBroker
    from ..link import HostLink

__all__ = ["add_commands"]

_BROKER_EPILOG = """\
examples:
  softs-fast broker
  softs-fast broker --frontend ipc:///run/me/f --backend ipc:///run/me/b
  softs-fast broker --frontend tcp://127.0.0.1:5555 --backend tcp://127.0.0.1:5556 --metrics 127.0.0.1:9464"""

_WORKER_EPILOG = """\
examples:
  softs-fast worker teachers:make_worker
  softs-fast worker my.package.teachers:make_worker --workers 4 --gpus 0,1

The function is called in each process and returns a Worker or a Supplier. Without endpoints of its own, and without
options, it connects to the broker that SOFTS_FAST_BACKEND and SOFTS_FAST_CONTROL_PUB name."""

_RUN_EPILOG = """\
examples:
  softs-fast run --factory teachers:make_worker --workers 4 -- python train.py
  softs-fast run --factory teachers:make_worker --gpus 0,1 -- torchrun --nproc-per-node 2 train.py
  softs-fast run --factory teachers:make_worker --workers 8 --connect student --token-file job.token
  softs-fast run --listen 0.0.0.0 --token-file job.token -- python train.py

The command starts when all workers serve, and finds the broker by SOFTS_FAST_FRONTEND, SOFTS_FAST_CONTROL and
SOFTS_FAST_CONTROL_PUB: the defaults of StudentClient and DistillIterableDataset. Its exit status is that of this one.
With --listen or --connect, either of which takes a PLACE, the broker is joined with those of other hosts, as
`softs-fast host` does; the command starts when one has joined, or after 10 s. Without a command
the workers serve these until SIGINT or SIGTERM."""

#: As in `softs_fast.market`, which is loaded when it is needed.
_FRONTEND, _BACKEND = "ipc:///tmp/softs_frontend.sock", "ipc:///tmp/softs_backend.sock"
_FACTORY = "function that returns a worker that is not started"
#: How long a command waits for a host that joins its link, and the pause between two looks, seconds.
_JOIN_S, _LOOK_S = 10.0, 0.02
#: A command that was told to end is killed after this time, seconds.
_END_S = 10.0


def add_commands(add_parser: AddParser) -> None:
    """Add the commands of a market."""
    text = "run a broker until SIGINT or SIGTERM"
    parser = command(add_parser, "broker", text, _run_broker, _BROKER_EPILOG, endless=True)
    option(parser, "--frontend", default=_FRONTEND)
    option(parser, "--backend", default=_BACKEND)
    option(
        parser, "--control", "endpoint at which students set the model", metavar="ENDPOINT",
        shown="served if it or --control-pub is given, or no endpoint is",
    )  # fmt: skip
    option(parser, "--control-pub")
    count = between(int, 1, 0xFFFF_FFFF)
    text = "orders of one product that wait here; more wait at their clients"
    option(parser, "--max-queue-per-product", text, type=count, default=16)
    text = "number of failures after which an order is given up"
    option(parser, "--max-order-attempts", text, type=count, default=5)
    option(parser, "--metrics")
    option(parser, "--allow-insecure")
    option(parser, "--log-level", default="info")
    text = "run workers of a broker until SIGINT or SIGTERM, or until the leader stops them"
    parser = command(add_parser, "worker", text, _run_workers, _WORKER_EPILOG, endless=True)
    parser.add_argument("factory", metavar="MODULE:FUNCTION", help=_FACTORY)
    _add_workers(parser)
    option(parser, "--log-level", default="warning")
    option(parser, "--backend")
    option(parser, "--control-pub")
    text = "run a command beside a broker, workers of its own, and a link to other hosts"
    parser = command(add_parser, "run", text, _run_beside, _RUN_EPILOG)
    option(parser, "--factory", _FACTORY, metavar="MODULE:FUNCTION", shown="there are no workers here")
    _add_workers(parser)
    add_link(parser)
    option(parser, "--log-level", shown="warning, or info with a link")
    parser.add_argument("script", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="command to run")


def _add_workers(parser: argparse.ArgumentParser) -> None:
    option(parser, "--workers", default=1)
    option(parser, "--gpus")


def _factory(name: str) -> NamedFactory:
    from ..fleet import NamedFactory

    sys.path.insert(0, os.getcwd())
    factory = NamedFactory(name)
    factory.load()
    return factory


def _run_broker(arguments: argparse.Namespace) -> None:
    """Run a broker until a signal arrives.

    Raises:
        EndpointInUse: a live broker already serves one of the endpoints, or the port for metrics is in use.
        ConfigError: an endpoint or address is malformed, or reachable from other machines without --allow-insecure.
        PeerLost: the operating system refused an address, or the broker's thread ended by itself.
    """
    from .. import setup_logging
    from ..market import Broker, ControlEndpoints, EndpointConfig
    from ..monitoring import MetricsServer, page_address

    if arguments.metrics is not None:
        page_address(arguments.metrics, "metrics", arguments.allow_insecure)
    setup_logging(arguments.log_level)
    endpoints, control = EndpointConfig(arguments.frontend, arguments.backend), arguments.control
    control_pub = arguments.control_pub
    if endpoints == EndpointConfig() or control or control_pub:
        control, control_pub = (
            control or ControlEndpoints.control,
            control_pub or ControlEndpoints.control_pub,
        )
    broker = Broker(
        endpoints,
        control_endpoint=control,
        control_pub_endpoint=control_pub,
        max_queue_per_product=arguments.max_queue_per_product,
        max_order_attempts=arguments.max_order_attempts,
        allow_remote=arguments.allow_insecure,
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(broker)
        bound = broker.bound_endpoints
        lines = [f"frontend {bound.frontend}", f"backend  {bound.backend}"]
        bound_control = broker.bound_control_endpoints
        if bound_control is not None:
            lines += [f"control  {bound_control.control}", f"control_pub {bound_control.control_pub}"]
        if arguments.metrics is not None:
            metrics = MetricsServer(bound.frontend, arguments.metrics, allow_remote=arguments.allow_insecure)
            stack.enter_context(metrics)
            lines.append(f"metrics  {metrics.url}")
        # Printed last: a reader of the text can rely on all endpoints.
        say("\n".join(lines))
        broker.wait()
        raise PeerLost("the broker has stopped by itself; its log names the cause")


def _run_workers(arguments: argparse.Namespace) -> None:
    """Run workers until a signal arrives, or all of them have ended because the leader stopped them.

    Raises:
        ConfigError: the factory cannot be imported, or returns something else.
        FleetError: a worker failed before it served, or too often.
    """
    from .. import setup_logging
    from ..fleet import Workers
    from ..market import EndpointName, variable_of

    setup_logging(arguments.log_level)
    make_worker = _factory(arguments.factory)
    given: dict[EndpointName, str | None] = {
        "backend": arguments.backend,
        "control_pub": arguments.control_pub,
    }
    environment = {variable_of(name): endpoint for name, endpoint in given.items() if endpoint is not None}
    with Workers(make_worker, environment, arguments.gpus) as workers:
        workers.scale(arguments.workers)
        say("1 worker serves" if arguments.workers == 1 else f"{arguments.workers} workers serve")
        workers.wait()
        error = workers.error()
        if error is not None:
            raise FleetError(error)


def _run_beside(arguments: argparse.Namespace) -> None:
    """Start a fleet or a broker, and a link if it is to have one, run the command, and end all.

    Without a command, until a signal comes, the workers have ended, or the link has.

    Raises:
        SystemExit: with the exit status of the command; 128 and its number if a signal has ended it.
        ConfigError: the factory cannot be imported, the command cannot be run, there is none and no workers with a link,
            or there are neither workers nor a link; or as for `joined`.
        EndpointInUse, PeerLost: as for `joined`; the link has ended by itself.
        FleetError: a worker failed before it served.
    """
    from .. import setup_logging

    command = arguments.script[arguments.script[:1] == ["--"] :]
    has_link = arguments.listen is not None or bool(arguments.connect)
    # The hosts that a link has joined are told at that level.
    setup_logging(arguments.log_level or ("info" if has_link else "warning"))
    arguments.endless = not command
    if not command and (arguments.factory is None or not has_link):
        raise ConfigError("there is no command to run; give it after --, as in: -- python train.py")
    if arguments.factory is None and not has_link:
        raise ConfigError(
            "there are no workers: give --factory, or --listen or --connect for those of other hosts"
        )
    status = None
    try:
        with contextlib.ExitStack() as stack:
            broker = _market(arguments)
            stack.enter_context(broker)
            if has_link:
                endpoints = broker.endpoints
                tell = partial(print, file=sys.stderr, flush=True) if command else say
                link = stack.enter_context(joined(arguments, endpoints.market, endpoints.control, tell))
                if command:
                    _await_a_host(link)
            if command:
                status = _status_of(command, {**os.environ, **broker.endpoints.as_environment()})
            else:
                if _first_to_end(broker.wait, link.wait) == 1:
                    raise PeerLost("the link has stopped by itself; its log names the cause")
    except FleetError as error:
        if status is None:
            raise
        print(f"softs-fast: {error}", file=sys.stderr)
    sys.exit(status)


def _market(arguments: argparse.Namespace) -> Fleet | PrivateBroker:
    from ..fleet import Fleet, PrivateBroker

    if arguments.factory is None:
        return PrivateBroker()
    return Fleet(_factory(arguments.factory), arguments.workers, gpus=arguments.gpus)


def _await_a_host(link: HostLink) -> None:
    """Wait until a host has joined, for some seconds: what is set before may have the number of a model there."""
    end_s = time.monotonic() + _JOIN_S
    while not link.n_hosts:
        if time.monotonic() > end_s:
            print(f"softs-fast: no host has joined within {_JOIN_S:g} s; the command starts", file=sys.stderr)
            return
        time.sleep(_LOOK_S)


def _first_to_end(*waits: Callable[[], None]) -> int:
    """Block until one of the waits is over; return its number."""
    over: queue.SimpleQueue[int] = queue.SimpleQueue()

    def run(number: int, wait: Callable[[], None]) -> None:
        wait()
        over.put(number)

    for number, wait in enumerate(waits):
        threading.Thread(target=run, args=(number, wait), daemon=True).start()
    return over.get()


def _status_of(command: list[str], environment: dict[str, str]) -> int:
    try:
        script = subprocess.Popen(command, env=environment)
    except OSError as error:
        raise ConfigError(f"cannot run {command[0]!r}: {error.strerror}") from error
    try:
        ended = threading.Thread(target=script.wait, daemon=True)
        ended.start()
        join(ended)
    except KeyboardInterrupt:
        # A terminal has sent it to the command too, which may save its work now.
        with contextlib.suppress(subprocess.TimeoutExpired):
            script.wait(_END_S)
        raise
    finally:
        _end(script)
    return script.returncode if script.returncode >= 0 else 128 - script.returncode


def _end(script: subprocess.Popen[bytes]) -> None:
    if script.poll() is not None:
        return
    script.terminate()
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            script.wait(_END_S)
    finally:
        script.kill()
        script.wait()
