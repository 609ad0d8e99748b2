"""``softs-fast gpu``: checks and measures the CUDA side on this machine's devices."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Any

from ..gpu.plan import MACHINE, chosen
from ..gpu.report import Report, device_of
from ..gpu.run import Outcome
from ..gpu.run import run as run_step
from .output import say
from .table import cut, plain, rows_of

__all__ = ["run"]

_FAILED, _NO_DEVICE = 1, 2
#: Where the result goes if no file is named.
_FILE = Path("softs-fast-gpu.json")


def run(arguments: argparse.Namespace) -> None:
    """Look for devices, run the steps, print a table, and keep everything in a file.

    Raises:
        SystemExit: a step failed (status 1), or no device can be used (2).
        ConfigError: there is no such step.
        SoftsError: the file, or standard output, cannot be written.
    """
    steps = chosen(arguments.only)
    looked = run_step(MACHINE, arguments.quick, start_method="spawn")
    machine = looked.result or {}
    problems = machine.get("problems", [f"the driver or torch does not answer: {looked.reason}"])
    report = Report(steps if not problems else [], arguments.quick, machine)
    if problems:
        _refuse(report, looked, problems, arguments.json)
    path = report.write(arguments.json or _FILE)
    say(_title(machine))
    for number, step in enumerate(steps, 1):
        say(f"{number:2}/{len(steps)}  {step.name:<17} ", end="")
        outcome = run_step(step, arguments.quick)
        report.add(step, outcome)
        report.write(path)
        say(_line(outcome))
    say("\n" + "\n".join(_table(report)))
    say(f"\nwrote {path}")
    if report.has_failed:
        sys.exit(_FAILED)


def _refuse(report: Report, looked: Outcome, problems: list[str], path: Path | None) -> None:
    """Tell why there is nothing to run, and end."""
    for problem in problems:
        print(f"softs-fast: {plain(problem)}", file=sys.stderr)
    if looked.state != "passed" and looked.output:
        print(textwrap.indent(looked.output, "  "), file=sys.stderr)
    if path is not None:
        say(f"wrote {report.write(path)}")
    sys.exit(_NO_DEVICE)


def _title(machine: dict[str, Any]) -> str:
    versions = f"CUDA {_version(machine['runtime'][0])}, driver for {_version(machine['driver'])}"
    count = len(machine["devices"])
    devices = device_of(machine) + (f" and {count - 1} more" if count > 1 else "")
    return f"{devices}; {versions}, torch {machine['torch']}"


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _line(outcome: Outcome) -> str:
    why = f"  {plain(outcome.reason)}" if outcome.reason else ""
    return f"{outcome.state:<9} {outcome.seconds:6.1f} s{why}"


def _table(report: Report) -> list[str]:
    width = shutil.get_terminal_size().columns
    rows = [[*cells, plain(text)] for *cells, text in report.rows()]
    lines = rows_of("STEP STATE SECONDS", [cells[:3] for cells in rows], n_left=2)
    texts = ["FOUND", *(cells[3] for cells in rows)]
    return [cut(f"{line}  {text}", max(width, 40)) for line, text in zip(lines, texts, strict=True)]
