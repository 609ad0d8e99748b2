"""``softs-fast flow worker``: runs one worker of a flow on several hosts."""

from __future__ import annotations

import argparse
import functools
import json
import logging
import os
import sys
from typing import NoReturn

from ..errors import ConfigError
from .options import AddParser, command, group, natural, option, seconds

__all__ = ["add_commands", "argument"]

_EPILOG = """\
examples:
  softs-fast flow worker tcp://10.0.0.1:4711 --token-file F --rank 0 ppo:make_flow
  srun softs-fast flow worker 'softs://10.0.0.1:4711/ppo?token_file=F' ppo:make_flow --argument seed=1
  mpirun -n 8 softs-fast flow worker tcp://10.0.0.1:4711 --token-file F ppo:make_flow

The master is a process with softs_fast.dataflow.Flow.on_hosts. The function and the arguments must be those of the
master. When the master is lost, or begins anew, so does the worker: the same process, by exec, waits for a master again;
with --exit-when-lost it ends. softs-fast keys new FILE makes the token file."""

logger = logging.getLogger(__name__)

#: Variable by which a program knows that it has begun anew.
_ANEW = "SOFTS_FLOW_ANEW"

#: What a value of an argument may be, if it is written in JSON.
_PLAIN = (str, int, float, bool, type(None))


def add_commands(add_parser: AddParser) -> None:
    """Add the commands of a flow."""
    add = group(add_parser, "flow", "run workers of a flow on several hosts")
    parser = command(add, "worker", "run one worker of a flow on several hosts", _run, _EPILOG)
    parser.add_argument(
        "endpoint",
        metavar="PLACE",
        help="place of the master, tcp://HOST:PORT or softs://HOST:PORT/JOB?token_file=FILE",
    )
    parser.add_argument("function", metavar="MODULE:FUNCTION", help="function that makes the flow")
    option(parser, "--token-file")
    option(
        parser, "--rank", "number of this worker", type=natural,
        shown="RANK, SLURM_PROCID, or what another launcher has set",
    )  # fmt: skip
    option(
        parser, "--argument", "argument of the function; numbers, true, false and null as in JSON, else text",
        type=argument, action="append", default=[], metavar="NAME=VALUE",
    )  # fmt: skip
    option(
        parser, "--connect-timeout", "seconds to wait for the master to listen", type=seconds, default=300.0
    )
    option(parser, "--lost-after", default=30.0)
    text = "end with status 1 when the master is lost, instead of waiting for the next one"
    option(parser, "--exit-when-lost", text, action="store_true")
    option(parser, "--log-level", default="info")


def argument(text: str) -> tuple[str, str | int | float | bool | None]:
    """Return name and value of an argument of a function.

    Raises:
        ArgumentTypeError: it is not NAME=VALUE.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r}: need NAME=VALUE")
    try:
        found = json.loads(value)
    except ValueError:
        return name, value
    return name, found if isinstance(found, _PLAIN) else value


def _run(arguments: argparse.Namespace) -> None:
    """Be a worker until the flow ends, or a signal arrives. If the master is lost, begin anew, and wait for the next one.

    Raises:
        ConfigError: there is no number of this worker, the function makes another flow than that of the master, or the
            endpoint or the token file cannot be used.
        HelloError: the master refused this worker.
        PeerLost: no master listens there in time; with --exit-when-lost also: it was lost.
        Exception: what the function, or `setup` of a role, raised.
    """
    from .. import setup_logging
    from ..coordination import launched_seat
    from ..dataflow import MasterLost, Program, declaration_of, run_worker, say_last

    program = Program(is_anew=_ANEW in os.environ)
    setup_logging(arguments.log_level)
    worker = arguments.rank if arguments.rank is not None else launched_seat()
    if worker is None:
        raise ConfigError(
            "this worker has no number; give --rank N, or have a launcher set RANK or SLURM_PROCID"
        )
    sys.path.insert(0, os.getcwd())
    build = functools.partial(declaration_of, arguments.function, dict(arguments.argument))

    def go_on(lost: MasterLost | None) -> NoReturn:
        if arguments.exit_when_lost or lost is None:
            text = lost or f"worker {worker}: the flow has ended, and its step has not"
            say_last(lambda: print(f"softs-fast: {text}", file=sys.stderr, flush=True))
            os._exit(1)
        say_last(lambda: logger.warning("%s; it begins anew", lost))
        program.begin_anew({_ANEW: "1"})

    try:
        run_worker(
            arguments.endpoint,
            worker,
            build,
            arguments.token_file,
            wait_s=arguments.connect_timeout,
            lost_after_s=arguments.lost_after,
            stuck=go_on,
        )
    except MasterLost as lost:
        if arguments.exit_when_lost:
            raise
        go_on(lost)
