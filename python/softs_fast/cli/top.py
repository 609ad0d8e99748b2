"""``softs-fast top``: shows a market, fleets and flows live."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import BrokerTimeout
from ..fleet import FleetView, fleets
from ..monitoring import FlowView, Observer, Snapshot, flows, rates_between
from .live import Chart, Live, serve
from .screen import flow_screen, outage, screen
from .table import Table, count, say
from .terminal import Terminal
from .views import fleet_tables, flow_tables, flows_line

__all__ = ["run"]


@dataclass(frozen=True)
class _Look:
    """What was seen at one time; no snapshot without an endpoint, or while its broker does not answer."""

    snapshot: Snapshot | None
    why: str
    fleets: tuple[FleetView, ...]
    flows: tuple[FlowView, ...]


_NOTHING = _Look(None, "", (), ())


def run(arguments: argparse.Namespace) -> None:
    """Show a market and the fleets and flows of this user until a signal arrives, or once; without a broker these alone.

    Raises:
        ConfigError: the endpoint is malformed, or the folder of the flows belongs to another user.
        BrokerTimeout: no broker answers, with --once; otherwise the command waits for one.
        WireError: the endpoint is not the broker's frontend.
        SoftsError: standard output cannot be written.
    """
    with contextlib.ExitStack() as stack:
        observer = None
        if arguments.target is not None:
            observer = stack.enter_context(Observer(arguments.target))
        if arguments.web is not None:
            serve(
                arguments.web, _looking(observer), arguments.interval, allow_remote=arguments.allow_insecure
            )
        elif not arguments.endless:
            before = _look(observer, is_strict=True)
            time.sleep(arguments.interval)
            _print(before, _look(observer, is_strict=True))
        elif sys.stdout.isatty():
            _live(observer, arguments.interval)
        else:
            _plain(observer, arguments.interval)


def _look(observer: Observer | None, *, is_strict: bool = False) -> _Look:
    snapshot, why = None, ""
    if observer is not None:
        try:
            snapshot = observer.snapshot()
        except BrokerTimeout as error:
            if is_strict:
                raise
            why = str(error)
    return _Look(snapshot, why, fleets(), flows())


def _looking(observer: Observer | None) -> Callable[[], Live]:
    """Return a function that looks at it for a page, and compares with what it has seen the last time."""
    before = _NOTHING

    def look() -> Live:
        nonlocal before
        now = _look(observer)
        if observer is not None and now.snapshot is None:
            lines = outage(observer.endpoint, now.why, None, None, _tables(before, now))
        else:
            lines = _screen(before, now, _clock())
        charts = _charts(before, now)
        before = now
        return Live("\n".join(lines), charts if observer is not None else charts[2:])

    return look


def _charts(before: _Look, now: _Look) -> tuple[Chart, ...]:
    samples_s = waited = None
    if now.snapshot is not None:
        rates = rates_between(before.snapshot, now.snapshot)
        samples_s = rates.samples_s
        if rates.clients:
            waited = 100 * sum(one.waited for one in rates.clients.values()) / len(rates.clients)
    return (
        Chart("samples to clients on this machine", "/s", samples_s),
        Chart("of the time clients wait", "%", waited),
        Chart("steps of flows", "", float(sum(one.steps for one in now.flows))),
    )


def _plain(observer: Observer | None, interval_s: float) -> None:
    before: _Look | None = None
    while True:
        now = _look(observer)
        if now.why:
            print(f"softs-fast: {now.why}", file=sys.stderr)
        elif before is not None and not before.why:
            _print(before, now)
            say("")
        before = now
        time.sleep(interval_s)


def _print(before: _Look, now: _Look) -> None:
    say("\n".join(_screen(before, now, _clock())))


def _live(observer: Observer | None, interval_s: float) -> None:
    before = _NOTHING
    with Terminal() as terminal:
        while True:
            next_look_s = time.monotonic() + interval_s
            now = _look(observer)
            clock, is_resized = _clock(), True
            while is_resized:
                width, height = terminal.size()
                if observer is not None and now.snapshot is None:
                    tables = _tables(before, now)
                    terminal.show(outage(observer.endpoint, now.why, width, height, tables))
                else:
                    terminal.show(_screen(before, now, clock, width, height))
                is_resized = terminal.pause(next_look_s)
            before = now


def _screen(
    before: _Look, now: _Look, clock: str, width: int | None = None, height: int | None = None
) -> list[str]:
    tables = _tables(before, now)
    if now.snapshot is None:
        return flow_screen(
            f"{count(len(now.fleets), 'fleet')}, {flows_line(now.flows)}", tables, clock, width, height
        )
    rates = rates_between(before.snapshot, now.snapshot)
    return screen(now.snapshot, rates, clock, width, height, tables)


def _tables(before: _Look, now: _Look) -> list[Table]:
    return [*fleet_tables(now.fleets), *flow_tables(before.flows, now.flows)]


def _clock() -> str:
    return time.strftime("%H:%M:%S")
