"""``softs-fast gpu``: checks and measures the CUDA side on this machine's devices."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .options import AddParser, command, option
from .table import cut, plain, rows_of, say

if TYPE_CHECKING:
    from ..gpu import Outcome, Report

__all__ = ["add_command"]

_EPILOG = """\
examples:
  softs-fast gpu --quick
  softs-fast gpu --output results/ --only deaths,slot-write

Each step runs in processes of its own, within a limit. The file is written again after each step. Exit status: 0 all
passed, 1 a step failed, 2 there is no GPU that can be used, and why."""

_FAILED, _NO_DEVICE = 1, 2
#: Where the result goes if no file is named.
_FILE = Path("softs-fast-gpu.json")


def add_command(add_parser: AddParser) -> None:
    """Add the command."""
    text = "check and measure the CUDA side on this machine's GPU"
    parser = command(add_parser, "gpu", text, _run, _EPILOG)
    option(parser, "--quick", "measure less", action="store_true")
    option(parser, "--output", shown=f"{_FILE}; in a folder, gpu-DEVICE.json")
    option(
        parser, "--only", "steps to run, by the names that the table shows", metavar="STEP,STEP",
        type=lambda text: text.split(","),
    )  # fmt: skip


def _run(arguments: argparse.Namespace) -> None:
    """Look for devices, run the steps, print a table, and keep everything in a file.

    Raises:
        SystemExit: a step failed (status 1), or no device can be used (2).
        ConfigError: there is no such step.
        SoftsError: the file, or standard output, cannot be written.
    """
    from ..gpu import MACHINE, Report, chosen, run_step

    steps = chosen(arguments.only)
    looked = run_step(MACHINE, arguments.quick, start_method="spawn")
    machine = looked.result or {}
    problems = machine.get("problems", [f"the driver or torch does not answer: {looked.reason}"])
    report = Report(steps if not problems else [], arguments.quick, machine)
    if problems:
        _refuse(report, looked, problems, arguments.output)
    path = report.write(arguments.output or _FILE)
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
    from ..gpu import device_of

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
