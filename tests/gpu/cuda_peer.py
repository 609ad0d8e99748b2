"""A teacher or a student in a process of its own: a fork of zygote.py that calls `run`."""

from __future__ import annotations

from typing import Any

import student
import teacher

RUN = {"teacher": teacher.run, "student": student.run}


def run(role: str, options: dict[str, Any]) -> None:
    """Do what a role does."""
    RUN[role](options)
