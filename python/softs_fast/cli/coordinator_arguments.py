"""The arguments of ``softs-fast coordinator``."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

__all__ = ["EPILOG", "add_arguments"]

_Run = Callable[[argparse.Namespace], None]
#: As in `softs_fast.coordination`, which is loaded when it is needed.
_MAX_SEATS = 4096

EPILOG = """\
examples:
  softs-fast coordinator --size 4
  softs-fast coordinator --min 2 --max 8 --state /shared/job.state --name my-job
  softs-fast coordinator --size 4 --listen 0.0.0.0:29401 --cert c.pem --key k.pem --ca workers.pem
  softs-fast coordinator status 127.0.0.1:29401

It tells workers which of them are members, and at once when one is gone. docs/coordination.md tells more."""


def add_arguments(parser: argparse.ArgumentParser, loaded: Callable[[str], _Run]) -> None:
    """Add the options of a coordinator, and the commands on one that runs.

    Args:
        parser: of the command.
        loaded: returns a function of the command's module by its name.
    """
    size = parser.add_argument_group("size of the job")
    size.add_argument("--size", type=_seats, metavar="N", help="exactly so many members")
    size.add_argument("--min", type=_seats, metavar="N", help="so many members at least")
    size.add_argument("--max", type=_seats, metavar="N", help="so many members at most")
    size.add_argument("--unit", type=_seats, default=1, metavar="N", help="members are a multiple of it")
    size.add_argument("--block", type=_seats, default=1, metavar="N", help="seats that belong together")
    size.add_argument(
        "--spares", type=_number, default=64, metavar="N", help="workers that may wait for a seat"
    )
    job = parser.add_argument_group("job")
    job.add_argument("--name", help="workers of another one are refused (default: SLURM's job, or else job)")
    job.add_argument("--state", type=Path, metavar="FILE", help="what a coordinator after this one must know")
    for name, default, text in (
        ("window", 30.0, "an epoch waits so long for workers that could be members"),
        ("rejoin", 600.0, "the job fails with too few members for so long"),
        ("grace", 10.0, "after a restart members have so long to connect"),
        ("stall", 300.0, "a seat that is a step behind for so long is named in an alarm"),
    ):
        text += " (default: %(default)g)"
        job.add_argument(f"--{name}", type=_seconds, default=default, metavar="SECONDS", help=text)
    job.add_argument("--evict-stalled", action="store_true", help="and loses its seat")
    job.add_argument(
        "--restarts",
        type=_number,
        metavar="N",
        help="restarts of one seat within an hour, at most, however its process has ended",
    )
    net = parser.add_argument_group("address and identity")
    net.add_argument(
        "--listen",
        default="127.0.0.1:29401",
        metavar="HOST:PORT",
        help="where workers connect; port 0 takes a free one (default: %(default)s)",
    )
    net.add_argument(
        "--ping",
        type=_seconds,
        default=1.0,
        metavar="SECONDS",
        help="from one ping of a worker to the next, and how long its answer may take (default: %(default)g)",
    )
    net.add_argument("--cert", type=Path, metavar="PEM", help="certificate of the coordinator")
    net.add_argument("--key", type=Path, metavar="PEM", help="key of it")
    net.add_argument(
        "--ca",
        type=Path,
        metavar="PEM",
        help="CA of workers and administrators, which then need certificates",
    )
    net.add_argument(
        "--tokens", type=Path, metavar="FILE", help='lines "NAME TOKEN" of workers and administrators'
    )
    net.add_argument(
        "--admin",
        action="append",
        metavar="NAME",
        help="identity that may evict, drain, resize and end (default: admin); may be given several times",
    )
    parser.add_argument(
        "--prometheus", metavar="HOST:PORT", help="serve metrics over HTTP there, on loopback"
    )
    parser.add_argument("--health", metavar="HOST:PORT", help="serve /healthz and /readyz over HTTP there")
    parser.add_argument(
        "--health-remote", action="store_true", help="other machines may ask for them, without authentication"
    )
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="what to log (default: %(default)s)",
    )
    parser.set_defaults(run=loaded("run"), is_endless=lambda arguments: True)
    commands = parser.add_subparsers(
        metavar="COMMAND", title="commands on a coordinator that runs"
    ).add_parser
    status = _on(commands, "status", "tell what the job does, and what it waits for", loaded("status"))
    status.add_argument("--json", action="store_true", help="print one JSON object")
    watch = _on(commands, "watch", "print the status after each change", loaded("watch"), is_endless=True)
    watch.add_argument("--json", action="store_true", help="print one JSON object per line")
    for name, text in (
        ("evict", "take a seat away from its worker, at once"),
        ("drain", "have the worker of a seat leave at the end of its step"),
    ):
        command = _on(commands, name, text, loaded("administer"))
        command.add_argument("seat", type=_number, metavar="SEAT", help="number of the seat")
        command.add_argument("--why", default="asked for by an administrator", help="for logs and members")
        command.set_defaults(action=name)
    resize = _on(commands, "resize", "change how many members there are", loaded("administer"))
    resize.add_argument("min", type=_seats, metavar="MIN", help="so many members at least")
    resize.add_argument("max", type=_seats, metavar="MAX", help="so many members at most")
    resize.set_defaults(action="resize")
    end = _on(commands, "end", "end the job", loaded("administer"))
    end.add_argument("--why", default="asked for by an administrator", help="for logs and members")
    end.set_defaults(action="end")


def _on(
    add_parser: Callable[..., argparse.ArgumentParser],
    name: str,
    text: str,
    run: _Run,
    is_endless: bool = False,
) -> argparse.ArgumentParser:
    parser = add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.add_argument("address", metavar="ADDRESS", help="of the coordinator, host:port")
    parser.add_argument("--ca", type=Path, metavar="PEM", help="CA of the coordinator")
    parser.add_argument("--cert", type=Path, metavar="PEM", help="certificate of the caller")
    parser.add_argument("--key", type=Path, metavar="PEM", help="key of it")
    parser.add_argument("--token", type=Path, metavar="FILE", help="token of the caller")
    parser.set_defaults(run=run, is_endless=lambda arguments: is_endless)
    return parser


def _seats(text: str) -> int:
    return _between(text, 1)


def _number(text: str) -> int:
    return _between(text, 0)


def _between(text: str, least: int) -> int:
    number = int(text)
    if not least <= number <= _MAX_SEATS:
        raise argparse.ArgumentTypeError(f"{text} is not between {least} and {_MAX_SEATS}")
    return number


def _seconds(text: str) -> float:
    seconds = float(text)
    if not (math.isfinite(seconds) and 0.01 <= seconds <= 86_400):
        raise argparse.ArgumentTypeError(f"{text} is not between 0.01 and 86400 seconds")
    return seconds


# argparse names the type of an argument that is no number at all.
_seats.__name__ = _number.__name__ = "whole number"
_seconds.__name__ = "number of seconds"
