"""The fleets of this user on this host, and what each says of its workers."""

from __future__ import annotations

from dataclasses import dataclass

from ..market import WorkerReport, read_report
from .folder import folders

__all__ = ["FleetView", "fleets"]


@dataclass(frozen=True)
class FleetView:
    """A fleet that runs: its process, its broker's frontend, its workers, and how their number was changed last."""

    pid: int
    frontend: str
    workers: tuple[WorkerReport, ...]
    scaled: str = ""


def fleets() -> tuple[FleetView, ...]:
    """Return the fleets of this user on this host that have begun, those with the same folder for temporary files."""
    found = []
    for folder, owner in folders():
        frontend = f"ipc://{folder}/frontend"
        report = read_report(frontend)
        if report is not None and owner.is_alive():
            found.append(FleetView(owner.pid, frontend, report.workers, report.scaled))
    return tuple(found)
