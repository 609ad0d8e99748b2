"""Time to recover from a kill -9 of a supplier, of a client, of the broker.

The observed client is in this process; the peers that are killed are processes of their own.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benches import workloads
from benches.fleet import READY_S, FleetError, Process
from benches.scenarios import SMALL

NAME = "recovery"


def measure(baseline: str, quick: bool) -> dict[str, Any]:
    """Kill peers of softs_fast repeatedly, and a supplier of the baseline once, because that takes over ten seconds.

    Returns:
        Milliseconds, median and maximum: `supplier_ms` (from the kill of the supplier that works on an order to the
        order's result from another one), `client_ms` (from the kill of a client to its removal by the broker),
        `broker_ms` (from the bind of a new broker to the next sample of an older client), and `baseline_supplier_ms`
        (one measurement); or `error`.
    """
    n = 5 if quick else 20
    # Each kill logs a warning, which is expected here.
    logging.getLogger("softs_fast").setLevel(logging.ERROR)
    try:
        record: dict[str, Any] = {
            "n": n,
            "supplier_ms": _summary([_after_supplier("softs_fast") for _ in range(n)]),
            "client_ms": _summary([_after_client() for _ in range(n)]),
            "broker_ms": _summary([_after_broker() for _ in range(n)]),
        }
        if baseline != "softs_fast":
            record["baseline_supplier_ms"] = _after_supplier(baseline)
    except (FleetError, TimeoutError) as error:
        return {"error": str(error)}
    return record


def _summary(times_ms: list[float]) -> dict[str, float]:
    return {"median": statistics.median(times_ms), "max": max(times_ms)}


class _Stage:
    """A broker and other processes, in a folder of its own."""

    def __init__(self, stack: ExitStack, package: str) -> None:
        self._stack, self._package = stack, package
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sr-")))
        self._n = 0
        self.frontend, self.backend = f"ipc://{self._folder}/f", f"ipc://{self._folder}/b"

    def launch(self, role: str, **more: Any) -> Process:
        """Start a process and wait until it is ready."""
        self._n += 1
        spec = {
            "role": role,
            "package": self._package,
            "frontend": self.frontend,
            "backend": self.backend,
            "size": asdict(SMALL),
            **more,
        }
        process = self._stack.enter_context(Process(role, spec, self._folder / f"{role}{self._n}.log"))
        process.tell({"start": True})
        process.wait_ready()
        return process

    def client(self, n_slots: int) -> Any:
        """A client in this process."""
        package = importlib.import_module(self._package)
        client = package.Client(self.frontend, package.ShmMedium, SMALL.nbytes, n_slots)
        self._stack.enter_context(closing(client))
        client.hello()
        return client


def _after_supplier(package: str) -> float:
    with ExitStack() as stack:
        stage = _Stage(stack, package)
        stage.launch("broker")
        holder = stage.launch("holder")
        client = stage.client(1)
        client.request_slot(workloads.PRODUCT)
        holder.answer(READY_S)
        stage.launch("supplier")
        started = _kill(holder)
        return _until(lambda: client.poll_completions(1) > 0, started)


def _after_client() -> float:
    with ExitStack() as stack:
        stage = _Stage(stack, "softs_fast")
        stage.launch("broker")
        witness = stage.client(1)
        victim = stage.launch("witness")
        assert witness.get_stats()["connected_clients"] == 2
        started = _kill(victim)
        return _until(lambda: witness.get_stats()["connected_clients"] == 1, started)


def _after_broker() -> float:
    with ExitStack() as stack:
        stage = _Stage(stack, "softs_fast")
        broker = stage.launch("broker")
        stage.launch("supplier")
        client = stage.client(4)
        workloads.one_by_one(client, 0.05)
        _kill(broker)
        while (slot := client.request_sample(workloads.PRODUCT, timeout_ms=0)) is not None:
            client.release_slot(slot)
        stage.launch("broker")
        return _until(
            lambda: client.request_sample(workloads.PRODUCT, timeout_ms=1) is not None, time.monotonic()
        )


def _kill(process: Process) -> float:
    started = time.monotonic()
    os.kill(process.pid, signal.SIGKILL)
    return started


def _until(condition: Callable[[], bool], started: float) -> float:
    while not condition():
        if time.monotonic() - started > READY_S:
            raise TimeoutError(f"nothing happened for {READY_S} s after a kill")
    return (time.monotonic() - started) * 1e3
