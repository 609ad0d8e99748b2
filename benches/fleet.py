"""Starts the processes of one measurement, measures their CPU time, and removes all that they leave.

Every measurement has processes of its own: one broker, its suppliers, its clients. They end when the pipe to their
standard input closes, so they cannot outlive this process. Their files in /dev/shm are removed by the names that they
had mapped, or that begin with the name of their folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from benches import proc
from benches.scenarios import Scenario, Side

READY_S = 60
STOP_S = 10
# Torch's OpenMP threads spin while they wait; on a machine with as many processes as cores that would
# measure the kernel's scheduler.
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}


class FleetError(RuntimeError):
    """A process of a fleet failed; the message holds the end of its log."""


class Fleet:
    """Broker, suppliers and clients of one scenario on one side, each a process of its own.

    Args:
        scenario: Scenario to run.
        side: The package of each role.
        warm_up_s: Seconds that each client takes samples before it is ready.
        with_clients: Whether to start clients; otherwise the caller is the client, at `frontend`.

    Attributes:
        processes: All processes.
        frontend: Endpoint for clients.
        backend: Endpoint for suppliers.
    """

    def __init__(
        self, scenario: Scenario, side: Side, warm_up_s: float = 0.2, with_clients: bool = True
    ) -> None:
        self._scenario = scenario
        self._side = side
        self._warm_up_s = warm_up_s
        self._with_clients = with_clients
        self._stack = ExitStack()
        self._clients: list[Process] = []
        self.processes: list[Process] = []
        self._segments: set[Path] = set()
        self.frontend = self.backend = ""

    def __enter__(self) -> Fleet:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sb-")))
            stack.callback(self._remove_segments, folder.name)
            self.frontend, self.backend = f"ipc://{folder}/f", f"ipc://{folder}/b"
            self._start(stack, folder)
            stack.callback(self._end_peers)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def measure(self, seconds: float) -> dict[str, Any]:
        """Run the workload in every client at once.

        Returns:
            What the workload measured (rates added over clients, the worst client's percentiles), and CPU
            seconds per role.

        Raises:
            FleetError: a process ended or did not answer.
        """
        before = [process.cpu_s() for process in self.processes]
        for process in self._clients:
            process.tell({"seconds": seconds})
        outcomes = [process.answer(seconds + READY_S) for process in self._clients]
        self._note_segments()
        cpu_s = {"broker": 0.0, "supplier": 0.0, "client": 0.0}
        for process, was in zip(self.processes, before, strict=True):
            # Of other software there is one process, and its children.
            cpu_s["client" if process.role == "opponent" else process.role] += process.cpu_s() - was
        outcome = _together(outcomes)
        outcome.update({f"{role}_cpu_s": spent for role, spent in cpu_s.items()})
        outcome["cpu_s"] = sum(cpu_s.values())
        if "samples" in outcome:
            outcome["cpu_s_per_10000"] = outcome["cpu_s"] / outcome["samples"] * 10_000
        else:
            outcome["cpu_percent"] = 100 * outcome["cpu_s"] / outcome["seconds"]
        return outcome

    def _start(self, stack: ExitStack, folder: Path) -> None:
        shared = {"frontend": self.frontend, "backend": self.backend}

        def launch(role: str, package: str, nth: int, **more: Any) -> Process:
            spec = {"role": role, "package": package, **shared, **more}
            process = stack.enter_context(Process(role, spec, folder / f"{role}{nth}.log"))
            self.processes.append(process)
            return process

        scenario, side = self._scenario, self._side
        size = asdict(scenario.size)
        brokers, suppliers = [], []
        if side.opponent:
            more = {"opponent": side.opponent, "size": size, "batch_size": scenario.batch_size}
            self._clients = [launch("opponent", "", 0, **more, warm_up_s=self._warm_up_s, folder=str(folder))]
        else:
            brokers = [launch("broker", side.broker, 0)]
            more = {"size": size, "call_s": scenario.call_s, "batch_generator": side.batch_generator}
            suppliers = [launch("supplier", side.supplier, i, **more) for i in range(scenario.n_suppliers)]
        if self._with_clients and not side.opponent:
            self._clients = [
                launch(
                    "client",
                    side.client,
                    i,
                    size=size,
                    workload=scenario.workload,
                    n_slots=scenario.n_slots,
                    batch_size=scenario.batch_size,
                    zero_copy=side.zero_copy,
                    prefetch=side.prefetch,
                    number=i,
                    warm_up_s=self._warm_up_s,
                )
                for i in range(scenario.n_clients)
            ]
        # All of them import at once; only then is it one role after the other, each with its server running.
        for processes in (brokers, suppliers, self._clients):
            for process in processes:
                process.tell({"start": True})
            for process in processes:
                process.wait_ready()
        self._note_segments()

    def _end_peers(self) -> None:
        # All of a role at once: one after the other takes long where there are many.
        for role in ("client", "supplier"):
            ending = [process for process in self.processes if process.role == role]
            for process in ending:
                process.end()
            for process in ending:
                process.wait()

    def _note_segments(self) -> None:
        for process in self._clients:
            self._segments |= process.segments()

    def _remove_segments(self, prefix: str) -> None:
        for segment in {*self._segments, *Path("/dev/shm").glob(f"{prefix}_*")}:
            segment.unlink(missing_ok=True)


class Process:
    """A process with one role, which is controlled by lines of JSON."""

    def __init__(self, role: str, spec: dict[str, Any], log: Path) -> None:
        self.role = role
        self.children: list[int] = []
        self.imported_bytes = 0
        self._log = log
        with log.open("wb") as errors:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "benches.role", json.dumps(spec)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                cwd=Path(__file__).parent.parent,
                env={**os.environ, **ENVIRONMENT},
            )

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        self.wait()

    def end(self) -> None:
        """Ask it to end. Idempotent."""
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()

    def wait(self) -> None:
        """Wait until it has ended; kill it after 10 s. Idempotent."""
        try:
            self._child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    def tell(self, order: dict[str, Any]) -> None:
        """Send one line.

        Raises:
            FleetError: the process has ended.
        """
        assert self._child.stdin is not None
        try:
            # Unbuffered: one write, and nothing left over that closing the pipe would have to flush.
            self._child.stdin.write(json.dumps(order).encode() + b"\n")
        except BrokenPipeError as error:
            raise self._ended() from error

    def answer(self, timeout_s: float) -> dict[str, Any]:
        """Wait for one line.

        Raises:
            FleetError: the process ended, or wrote nothing in time.
        """
        assert self._child.stdout is not None
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._child.stdout, selectors.EVENT_READ)
            if not selector.select(deadline - time.monotonic()):
                raise FleetError(f"{self.role} said nothing for {timeout_s:.0f} s\n{self._log_end()}")
        line = self._child.stdout.readline()
        if not line:
            raise self._ended()
        outcome: dict[str, Any] = json.loads(line)
        return outcome

    def wait_ready(self) -> None:
        """Wait until it reports that it is ready, the processes that it has started, and the memory of its imports.

        Raises:
            FleetError: the process ended, or wrote nothing in time.
        """
        answer = self.answer(READY_S)
        self.children, self.imported_bytes = answer["children"], answer["imported_bytes"]

    def cpu_s(self) -> float:
        """CPU seconds that the process and its children have used so far."""
        return sum(proc.cpu_s(pid) for pid in (self.pid, *self.children))

    def segments(self) -> set[Path]:
        """Files in /dev/shm that the process has mapped now."""
        return proc.segments(self.pid)

    def _ended(self) -> FleetError:
        # The pipe closes before the process has written the cause.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(STOP_S)
        return FleetError(f"{self.role} ended early\n{self._log_end()}")

    def _log_end(self) -> str:
        return self._log.read_text(errors="replace")[-3_000:]


def _together(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    added = {"samples", "samples_per_s", "lost_slots", "restarts", "slots_used", "switches", "stale_samples"}
    return {
        key: sum(one[key] for one in outcomes) if key in added else max(one[key] for one in outcomes)
        for key in outcomes[0]
    }
