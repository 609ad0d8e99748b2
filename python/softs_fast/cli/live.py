"""``softs-fast top --web``: serves a page that shows a service live, with charts of the last ten minutes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from ..errors import SoftsError
from ..monitoring import Page, PageServer
from .table import say

__all__ = ["Chart", "Live", "serve"]

_PAGE = Path(__file__).with_name("live.html")


@dataclass(frozen=True)
class Chart:
    """A number that the page draws over time.

    Attributes:
        name: What it is.
        unit: Its unit.
        value: What it is now; None if that is not known.
    """

    name: str
    unit: str
    value: float | None


@dataclass(frozen=True)
class Live:
    """What the page shows.

    Attributes:
        text: Lines, as in a terminal.
        charts: Numbers; the same ones each time.
    """

    text: str
    charts: tuple[Chart, ...]


def serve(address: str, look: Callable[[], Live], interval_s: float, *, allow_remote: bool) -> None:
    """Serve the page until a signal arrives.

    Args:
        address: Address to listen at, ``host:port``.
        look: Returns what is to be seen now; called in another thread, at most once within an interval.
        interval_s: Seconds between two looks.
        allow_remote: Whether other machines may reach the address. There is no authentication.

    Raises:
        ConfigError: The address is malformed, or reachable from other machines without `allow_remote`.
        EndpointInUse: Something else listens there.
    """
    document = _PAGE.read_text()
    # All that ask within an interval see the same.
    last, seen_s = "", -interval_s

    def now() -> Page:
        nonlocal last, seen_s
        if time.monotonic() - seen_s >= interval_s / 2:
            try:
                seen = look()
            except SoftsError as error:
                seen = Live(str(error), ())
            last, seen_s = json.dumps({**asdict(seen), "interval_s": interval_s}), time.monotonic()
        return Page(last, kind="application/json")

    pages = {"/": lambda: Page(document, kind="text/html; charset=utf-8"), "/now.json": now}
    with PageServer(pages, address, what="page", allow_remote=allow_remote) as server:
        say(f"page {server.url}")
        threading.Event().wait()
