"""``softs-fast top``: shows a market live."""

from __future__ import annotations

import argparse
import sys
import time

from ..errors import BrokerTimeout
from ..monitoring.snapshot import Observer, Snapshot
from .output import say
from .rates import rates_between
from .screen import outage, screen
from .terminal import Terminal

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> None:
    """Show a market until a signal arrives, or once.

    Raises:
        ConfigError: the endpoint is malformed.
        BrokerTimeout: no broker answers, with --once; otherwise the command waits for one.
        WireError: the endpoint is not the broker's frontend.
        SoftsError: standard output cannot be written.
    """
    with Observer(arguments.endpoint) as observer:
        if arguments.once:
            before = observer.snapshot()
            time.sleep(arguments.interval)
            _print(before, observer.snapshot())
        elif sys.stdout.isatty():
            _live(observer, arguments.interval)
        else:
            _plain(observer, arguments.interval)


def _plain(observer: Observer, interval_s: float) -> None:
    before: Snapshot | None = None
    while True:
        try:
            now = observer.snapshot()
        except BrokerTimeout as error:
            before = None
            print(f"softs-fast: {error}", file=sys.stderr)
        else:
            if before is not None:
                _print(before, now)
                say("")
            before = now
        time.sleep(interval_s)


def _print(before: Snapshot, now: Snapshot) -> None:
    say("\n".join(screen(now, rates_between(before, now), _clock())))


def _live(observer: Observer, interval_s: float) -> None:
    before: Snapshot | None = None
    with Terminal() as terminal:
        while True:
            next_look_s = time.monotonic() + interval_s
            now, why = None, ""
            try:
                now = observer.snapshot()
            except BrokerTimeout as error:
                why = str(error)
            clock, is_resized = _clock(), True
            while is_resized:
                width, height = terminal.size()
                if now is None:
                    terminal.show(outage(observer.endpoint, why, width, height))
                else:
                    terminal.show(screen(now, rates_between(before, now), clock, width, height))
                is_resized = terminal.pause(next_look_s)
            before = now


def _clock() -> str:
    return time.strftime("%H:%M:%S")
