"""``softs-fast status`` and ``top``: how a service does, whichever it is."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BrokerTimeout, ConfigError
from ..records import plain
from . import coordinator, paramserver
from .options import PLACE, AddParser, command, option
from .table import say, stack

if TYPE_CHECKING:
    from ..fleet import FleetView
    from ..monitoring import FlowView, Snapshot

__all__ = ["add_commands"]

_VARIABLE = "SOFTS_FAST_FRONTEND"
_FRONTEND = "ipc:///tmp/softs_frontend.sock"

_STATUS_EPILOG = f"""\
examples:
  softs-fast status                                         fleets and flows, and the broker of {_VARIABLE}
  softs-fast status {_FRONTEND} --json | jq .stats.pending_orders
  softs-fast status 127.0.0.1:29401 --watch                 a coordinator
  softs-fast status /data/paramserver.state                 a parameter server

Fleets and flows are those of this user on this host. A broker of softs tells less: no clients and no suppliers."""

_TOP_EPILOG = f"""\
examples:
  softs-fast top {_FRONTEND}
  softs-fast top {_FRONTEND} --once | head
  softs-fast top
  softs-fast top 127.0.0.1:29401 --web 127.0.0.1:8080       a coordinator, in a browser

Fleets and flows are those of this user on this host. THREAD is what the thread of a flow does, and for how long; QUIET the time
since a call of it has ended, SINCE how long the oldest call runs, or a worker is inside of it.

PRODUCER is the share of time in which a client waits while its suppliers are busy: add suppliers.
CONSUMER is the share in which suppliers idle because samples are finished or held: the client is slower.
Without a terminal it prints plain text, one screen after the other."""


def add_commands(add_parser: AddParser) -> None:
    """Add the commands."""
    text = "print the state of a broker, a coordinator or a parameter server, or of fleets and flows"
    parser = command(add_parser, "status", text, _status, _STATUS_EPILOG)
    _add_target(
        parser,
        f"broker's frontend (ipc:// or tcp://), coordinator (HOST:PORT or {PLACE}), or parameter server (its state file, or the "
        "URL of the owner's page)",
    )
    option(parser, "--json")
    text = "print again every --interval, or after each change of a coordinator or parameter server"
    option(parser, "--watch", text, action="store_true", dest="endless")
    option(parser, "--interval", default=2.0)
    coordinator.add_identity(parser.add_argument_group("identity, for a coordinator"))
    parser = command(add_parser, "top", "watch a market and flows live", _top, _TOP_EPILOG, endless=True)
    _add_target(parser, f"broker's frontend, such as {_FRONTEND} or tcp://127.0.0.1:5555")
    option(parser, "--interval", default=1.0)
    text = "print one screen as plain text, after one interval"
    option(parser, "--once", text, action="store_false", dest="endless")
    web = parser.add_argument_group("page, instead of the terminal")
    text = "address to serve a page at that shows it in a browser, of a coordinator (host:port), too"
    option(web, "--web", text, metavar="HOST:PORT")
    option(web, "--allow-insecure")
    coordinator.add_identity(parser.add_argument_group("identity, for a coordinator"))


def _add_target(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument(
        "target",
        metavar="TARGET",
        nargs="?",
        default=os.environ.get(_VARIABLE) or None,
        help=f"{text}; default: that of {_VARIABLE}, or without it fleets and flows alone",
    )


def _top(arguments: argparse.Namespace) -> None:
    """Show a market and flows, or with --web a job, live.

    Raises:
        ConfigError: the target or an option is for something else.
        SoftsError: what the command of the service raises.
    """
    if arguments.web is None and arguments.allow_insecure:
        raise ConfigError("--allow-insecure is for --web")
    if not _is_address(arguments.target):
        _check_no_identity(arguments)
        from .top import run

        run(arguments)
    elif arguments.web is None:
        raise ConfigError(
            f"top shows a coordinator in a browser alone: give --web HOST:PORT, or use `softs-fast status {arguments.target} "
            "--watch`"
        )
    else:
        from .live import serve

        with coordinator.opened(arguments) as look:
            serve(arguments.web, look, arguments.interval, allow_remote=arguments.allow_insecure)


def _is_address(target: str | None) -> bool:
    """Return whether a target is that of a coordinator, HOST:PORT or softs://."""
    return target is not None and re.match(r"softs://|(\[[^]/]+\]|[^]/:\[]+):\d+$", target) is not None


def _check_no_identity(arguments: argparse.Namespace) -> None:
    if any((arguments.tls_ca, arguments.tls_cert, arguments.tls_key, arguments.token_file)):
        raise ConfigError(
            "--tls-ca, --tls-cert, --tls-key and --token-file are for a coordinator, HOST:PORT or softs://"
        )


def _status(arguments: argparse.Namespace) -> None:
    """Print a status once, or again and again; the form of the target says which service it is of.

    Raises:
        ConfigError: no service has such a target, or what the command of the service raises.
        SoftsError: what the command of the service raises.
    """
    target: str | None = arguments.target
    if _is_address(target):
        arguments.address = target
        (coordinator.watch if arguments.endless else coordinator.show)(arguments)
        return
    _check_no_identity(arguments)
    if target is None or target.startswith(("ipc:", "tcp:")):
        _market(arguments)
    elif target.startswith(("http://", "https://")) or Path(f"{target}.owner").exists():
        arguments.state = target if "://" in target else Path(target)
        (paramserver.watch if arguments.endless else paramserver.show)(arguments)
    else:
        raise ConfigError(
            f"unknown target {target!r}: expected ipc://PATH or tcp://HOST:PORT of a broker, HOST:PORT or softs:// of a "
            "coordinator, or the --state or the URL of a parameter server that runs"
        )


def _market(arguments: argparse.Namespace) -> None:
    """Print a broker's statistics and the fleets and flows of this user.

    Raises:
        ConfigError: the endpoint is malformed, or the folder of the flows belongs to another user.
        BrokerTimeout: no broker answers; with --watch the command waits for one instead.
        WireError: the endpoint is not the broker's frontend.
        SoftsError: standard output cannot be written.
    """
    from ..fleet import fleets
    from ..monitoring import Observer, flows

    with contextlib.ExitStack() as opened:
        observer = None
        if arguments.target is not None:
            observer = opened.enter_context(Observer(arguments.target))
        while True:
            try:
                snapshot = observer.snapshot() if observer is not None else None
                _print(snapshot, fleets(), flows(), arguments.json)
            except BrokerTimeout as error:
                if not arguments.endless:
                    raise
                print(f"softs-fast: {error}", file=sys.stderr)
            if not arguments.endless:
                return
            time.sleep(arguments.interval)


def _print(
    snapshot: Snapshot | None, running: Sequence[FleetView], seen: Sequence[FlowView], as_json: bool
) -> None:
    from .views import fleet_tables, flow_tables, render

    if as_json:
        content = snapshot.as_dict() if snapshot is not None else {}
        both = {"fleets": list(map(dataclasses.asdict, running)), "flows": list(map(_flow, seen))}
        say(json.dumps(content | both))
        return
    if snapshot is not None:
        say(render(snapshot), end="")
    if snapshot is None or running or seen:
        tables = [table for table in (*fleet_tables(running), *flow_tables((), seen)) if table[1]]
        say("\n".join([f"fleets     {len(running)}", f"flows      {len(seen)}", *stack(tables, None), ""]))


def _flow(flow: FlowView) -> dict[str, Any]:
    content: dict[str, Any] = plain(flow)
    del content["at_s"]
    return content
