"""What a run of the check has found so far, as one JSON object in a file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..errors import SoftsError
from .plan import Step
from .run import Outcome

__all__ = ["Report"]


class Report:
    """The results of the steps that have ended.

    Args:
        steps: All steps that are to run.
        quick: Whether their limits are the short ones.
        machine: Facts about the machine, found before the steps run.
    """

    def __init__(self, steps: Sequence[Step], quick: bool, machine: Mapping[str, Any]) -> None:
        self._steps = steps
        self._quick = quick
        self._machine = machine
        self._began = _now()
        self._outcomes: dict[str, Outcome] = {}

    def add(self, step: Step, outcome: Outcome) -> None:
        """Note what became of a step."""
        self._outcomes[step.name] = outcome

    @property
    def has_failed(self) -> bool:
        """Whether a step neither passed nor was skipped."""
        return any(outcome.state not in ("passed", "skipped") for outcome in self._outcomes.values())

    def rows(self) -> list[list[str]]:
        """Return the cells of a table: name, state, seconds, and why it failed or what it found."""
        return [
            [step.name, outcome.state, f"{outcome.seconds:.1f}", remark(outcome)]
            for step in self._steps
            if (outcome := self._outcomes.get(step.name)) is not None
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return everything; steps that have not run have the state "not run"."""
        done = len(self._outcomes) == len(self._steps)
        steps = []
        for step in self._steps:
            outcome = self._outcomes.get(step.name, Outcome("not run", 0.0))
            named = {"name": step.name, "proves": step.proves, "limit_s": step.limit_s}
            steps.append(named | asdict(outcome))
        return {
            "quick": self._quick,
            "began": self._began,
            "ended": _now() if done else None,
            "machine": dict(self._machine),
            "steps": steps,
        }

    def write(self, path: Path) -> Path:
        """Write everything, in place of what was written before; return the file.

        Args:
            path: Path of the file, or of a folder, in which the file is named after the device.

        Raises:
            SoftsError: it cannot be written.
        """
        if path.is_dir():
            path /= f"gpu-{_as_name(device_of(self._machine))}.json"
        fresh = path.with_name(f".{path.name}.fresh")
        try:
            fresh.write_text(json.dumps(self.as_dict(), indent=1) + "\n")
            os.replace(fresh, path)
        except OSError as error:
            raise SoftsError(
                f"cannot write {path}: {error.strerror}; name another file by --output"
            ) from error
        return path


def device_of(machine: Mapping[str, Any]) -> str:
    """Return the name of the first device."""
    devices = machine.get("devices") or [{"name": "none"}]
    return str(devices[0]["name"])


def remark(outcome: Outcome) -> str:
    """Return why a step has not passed, or what it found, in a line."""
    found = outcome.result.get("note", "") if isinstance(outcome.result, dict) else ""
    return outcome.reason or str(found)


def _as_name(device: str) -> str:
    return re.sub("[^a-z0-9]+", "-", device.lower()).strip("-")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
