"""Whether a coordinator or a worker is ready, or why not, in words."""

from __future__ import annotations

from typing import Protocol

from ...monitoring import Page
from ..job.participant import Participant
from ..job.status import Status

__all__ = ["Worker", "coordinator_reason", "readiness_page", "worker_reason"]

_DOING = {
    "away": "it has not reached the coordinator yet",
    "idle": "it waits for an epoch",
    "building": "it prepares for an epoch",
    "ending": "its epoch is over",
    "over": "the coordinator has refused it",
}


class Worker(Protocol):
    """What is asked for its health: `WorkerNode` and `Membership`."""

    @property
    def not_ready(self) -> str:
        """Why it has no seat in an open epoch, in words; empty if it has one."""


def worker_reason(machine: Participant, error: Exception | None, has_left: bool, trouble: str) -> str:
    """Return why a worker has no seat in an open epoch; empty if it has one.

    That is the error that has ended its session, that it has left, its trouble with the connection, or its phase.
    """
    if error is not None:
        return str(error)
    if has_left:
        return "it has left the job"
    return (trouble if machine.phase == "away" else "") or _DOING.get(machine.phase, "")


def coordinator_reason(status: Status | None) -> str:
    """Return why no worker can take part; empty if the coordinator serves them. None: the coordinator does not answer."""
    if status is None:
        return "the coordinator does not answer"
    return f"the job has {status.phase}: {status.reason}" if status.phase in ("ended", "failed") else ""


def readiness_page(reason: str) -> Page:
    """Return the page of a reason; none is good."""
    return Page(f"{reason}\n", 503) if reason else Page("ready\n")
