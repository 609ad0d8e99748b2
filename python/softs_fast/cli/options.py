"""Options of ``softs-fast``: what several commands share, their types, and how a command is added to the parser."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = [
    "PLACE",
    "AddParser",
    "Run",
    "between",
    "command",
    "group",
    "member",
    "natural",
    "option",
    "positive",
    "seconds",
    "workers",
]

#: Adds a command: `add_parser` of what `ArgumentParser.add_subparsers` returns.
AddParser = Callable[..., argparse.ArgumentParser]
#: Runs a command with its options.
Run = Callable[[argparse.Namespace], None]
_Parse = Callable[[str], Any]
#: Form of a place, as `softs_fast.trust.Place` reads it.
PLACE = "softs://HOST/JOB?token_file=FILE"


def between(kind: Callable[[str], float], least: float, most: float) -> _Parse:
    """Return the type of a number within bounds."""
    what = "whole number" if kind is int else "number"

    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a {what}") from None
        if math.isnan(value) or not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not between {least} and {most}")
        return value

    return parse


#: From a clock tick to a month.
seconds = between(float, 0.01, 31 * 86_400)
positive = between(int, 1, 1 << 62)
natural = between(int, 0, 1 << 62)
#: Processes of a fleet; as in `softs_fast.fleet`, which is loaded when it is needed.
workers = between(int, 1, 1024)
#: Workers of one job; as in `softs_fast.coordination` and `softs_fast.paramserver`.
member = between(int, 1, 4096)


def _gpus(text: str) -> list[int]:
    try:
        devices = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of devices") from None
    if min(devices) < 0:
        raise argparse.ArgumentTypeError(f"{text} has a number below 0")
    return devices


#: Options of several commands; each has the same meaning in all of them.
_SHARED: dict[str, dict[str, Any]] = {
    "--allow-insecure": {
        "action": "store_true",
        "help": "let other machines connect without encryption or authentication",
    },
    "--backend": {"metavar": "ENDPOINT", "help": "endpoint of the broker for suppliers"},
    "--control-pub": {"metavar": "ENDPOINT", "help": "endpoint at which the broker announces models"},
    "--frontend": {"metavar": "ENDPOINT", "help": "endpoint of the broker for clients"},
    "--gpus": {"type": _gpus, "metavar": "I,J", "help": "devices; worker i sees one of them, in turn"},
    "--interval": {"type": seconds, "help": "seconds between two looks at a broker and at flows"},
    "--json": {"action": "store_true", "help": "print JSON, one object per line"},
    "--listen": {
        "metavar": "PLACE",
        "help": f"place to listen at, HOST:PORT or {PLACE}; port 0 takes a free one",
    },
    "--log-level": {
        "choices": ("debug", "info", "warning", "error"),
        "help": "least severity of the records that are logged",
    },
    "--lost-after": {"type": seconds, "help": "seconds of silence after which a peer counts as lost"},
    "--max-workers": {"type": member, "help": "largest number of workers at a time"},
    "--metrics": {
        "metavar": "HOST:PORT",
        "help": "address to serve Prometheus metrics at, over HTTP; port 0 takes a free one",
    },
    "--output": {"type": Path, "help": "file to write the result to"},
    "--push-codec": {"choices": ("f32", "bf16", "int8", "top_k"), "help": "codec of pushes"},
    "--reason": {"metavar": "TEXT", "help": "reason shown in logs and to the workers"},
    "--rejoin-timeout": {"type": seconds, "help": "seconds to wait for lost peers to return before failing"},
    "--state": {"type": Path, "help": "state file of the server; a restarted server resumes from it"},
    "--tls-ca": {"type": Path, "metavar": "PEM", "help": "CA that has signed the certificates of the peers"},
    "--tls-cert": {"type": Path, "metavar": "PEM", "help": "certificate of this process"},
    "--tls-key": {"type": Path, "metavar": "PEM", "help": "key of the certificate"},
    "--token-file": {
        "type": Path,
        "help": "token file of the job, with mode 0600; softs-fast keys new FILE makes one (default: that of the place, else "
        "of SOFTS_FAST_TOKEN_FILE)",
    },
    "--top-k-fraction": {
        "type": between(float, 1e-9, 1.0),
        "metavar": "FRACTION",
        "help": "share of the elements that the codec top_k sends",
    },
    "--workers": {"type": workers, "help": "number of worker processes"},
    "--world-size": {"type": member, "help": "number of workers that train together"},
}
_METAVARS: dict[object, str] = {seconds: "SECONDS", Path: "FILE"}


def option(parser: Any, name: str, text: str = "", *, shown: str = "", **given: Any) -> None:
    """Add an option, and show its default.

    Args:
        parser: Parser or group of options.
        name: Option; its description is shared if there is no `text`.
        text: Description.
        shown: Words for a default that depends on something else.
        given: Further arguments of `add_argument`.
    """
    known = {**({"help": text} if text else _SHARED[name]), **given}
    default = known.get("default")
    if not shown and default not in (None, [], ""):
        shown = f"%(default){'g' if isinstance(default, float) else 's'}"
    if shown:
        known["help"] += f" (default: {shown})"
    if "type" in known:
        known.setdefault("metavar", _METAVARS.get(known["type"], "N"))
    parser.add_argument(name, **known)


def group(add_parser: AddParser, name: str, summary: str) -> AddParser:
    """Add a group of commands; return what adds one to it."""
    parser = add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", allow_abbrev=False
    )
    add: AddParser = parser.add_subparsers(metavar="COMMAND", required=True).add_parser
    return add


def command(
    add_parser: AddParser, name: str, summary: str, run: Run, epilog: str = "", *, endless: bool = False
) -> argparse.ArgumentParser:
    """Add a command.

    Args:
        add_parser: Adds a command to the program or to a group.
        name: Name of the command.
        summary: What it does, as an imperative.
        run: Runs it.
        epilog: Examples and remarks.
        endless: Whether only a signal ends it.
    """
    parser = add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run, endless=endless, command=parser.prog)
    return parser
