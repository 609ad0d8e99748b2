"""What a fleet says of its workers to the clients of its broker, in any process: a file beside the broker's sockets."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["FleetReport", "WorkerReport", "read_report", "write_report"]

_NAME = "workers"
#: The end of a worker's error that the error of a client shows.
_N_LINES, _MAX_LINE = 20, 300


@dataclass(frozen=True)
class WorkerReport:
    """One worker.

    Args:
        name: Name of the worker, such as "worker 0".
        state: State of the worker, as `Fleet.states` has it.
        error: How its last run that failed has ended; empty if none has.
        failed_at: When that was, `time.monotonic()`, which is the same clock in all processes of a host.
        threads: Its OMP_NUM_THREADS; empty if it has none, as where its number is left to torch.
    """

    name: str
    state: str
    error: str = ""
    failed_at: float = 0.0
    threads: str = ""


@dataclass(frozen=True)
class FleetReport:
    """The workers of a fleet.

    Args:
        workers: All of them.
        scaled: How their number was changed last, and why; empty if it never was.
    """

    workers: tuple[WorkerReport, ...]
    scaled: str = ""

    @property
    def is_over(self) -> bool:
        """Whether no worker runs or will start again."""
        return all(worker.state in ("ended", "given up") for worker in self.workers)

    @property
    def is_starting(self) -> bool:
        """Whether a worker starts, or may after a pause."""
        return any(worker.state in ("starting", "pausing", "ending") for worker in self.workers)

    def cause(self) -> str:
        """Return why workers do not serve, for the end of an error; empty if nothing has happened to any."""
        failed = [worker for worker in self.workers if worker.error]
        if not failed and all(worker.state == "serving" for worker in self.workers):
            return ""
        counts = Counter(worker.state for worker in self.workers)
        text = f"; workers of the fleet: {', '.join(f'{n} {state}' for state, n in counts.items())}"
        if not failed:
            return text
        last = max(failed, key=lambda worker: worker.failed_at)
        lines = [line[:_MAX_LINE] for line in last.error.splitlines() if line.strip()]
        ago_s = max(0.0, time.monotonic() - last.failed_at)
        shown = "\n".join(lines[:1] + lines[1:][-_N_LINES:])
        return f"{text}; {last.name} failed {ago_s:.1f} s ago: {shown}"


def write_report(folder: Path, workers: Sequence[WorkerReport], scaled: str = "") -> None:
    """Replace the report of a fleet.

    Raises:
        OSError: the file cannot be written.
    """
    new = folder / f"{_NAME}.new"
    new.write_text(json.dumps({"workers": [asdict(worker) for worker in workers], "scaled": scaled}))
    new.replace(folder / _NAME)


def read_report(endpoint: str) -> FleetReport | None:
    """Return what the fleet of a broker says; None if the broker is not that of a fleet on this host.

    Args:
        endpoint: The broker's frontend.
    """
    if not endpoint.startswith("ipc://"):
        return None
    try:
        content = json.loads((Path(endpoint.removeprefix("ipc://")).parent / _NAME).read_text())
        workers = tuple(WorkerReport(**worker) for worker in content["workers"])
        return FleetReport(workers, content["scaled"]) if workers else None
    except (OSError, ValueError, TypeError, KeyError):
        # Another file, or the fleet ends at this moment.
        return None
