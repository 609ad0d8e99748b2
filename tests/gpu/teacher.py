"""A teacher in a process of its own. It reports in lines of JSON what happens, and ends with its input."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
from typing import Any

from softs_fast import CudaIpcMedium, ShmMedium, Supplier
from softs_fast.gpu.checks.maker import Maker
from softs_fast.market.device_output import DeviceOutput
from softs_fast.market.mediums.cuda.remote_arena import RemoteArena

_lock = threading.Lock()


def say(**event: Any) -> None:
    with _lock:
        print(json.dumps(event), flush=True)


class _Records(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(event="log", text=record.getMessage())


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point: str, n_before: int) -> None:
    """Die at a point of the order after so many others."""
    write, put = RemoteArena.write, DeviceOutput.put
    calls = iter(range(1 << 30))

    def deadly_write(self: RemoteArena, *arguments: Any) -> Any:
        now = next(calls) == n_before
        if now and point == "ticket read":
            die()
        place = write(self, *arguments)
        if now and point == "submitted":
            die()
        return place

    def deadly_put(self: DeviceOutput, *arguments: Any) -> None:
        # Those before were published when their functions returned; their work has not even begun.
        if next(calls) == n_before:
            die()
        put(self, *arguments)

    if point == "published":
        DeviceOutput.put = deadly_put  # type: ignore[method-assign]
    else:
        RemoteArena.write = deadly_write  # type: ignore[method-assign]


def run(options: dict[str, Any]) -> None:
    """Serve what the options name until the input ends."""
    log = logging.getLogger("softs_fast")
    log.addHandler(_Records())
    log.propagate = False
    if options["point"]:
        arm(options["point"], options["n_before"])
    medium = {"cuda": CudaIpcMedium, "shm": ShmMedium}[options["medium"]]
    with contextlib.ExitStack() as suppliers:
        for one in options["serves"]:
            maker = Maker(one["config"], one["where"], one["device"], one["wide"])
            supplier = Supplier(
                product_ids=[one["product"]],
                endpoint=options["backend"],
                medium_cls=medium,
                slot_size=maker.config.nbytes(),
                **maker.arguments(one["kind"]),
            )
            suppliers.enter_context(supplier)
        say(event="ready")
        sys.stdin.read()
