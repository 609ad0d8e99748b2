"""``softs-fast doctor``: says what this machine can and cannot do, and what to do about it."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap

from .options import AddParser, command
from .table import plain, say

__all__ = ["add_command"]

_EPILOG = """\
Exit status: 0 nothing will fail, 1 there is a problem. A note is about what is slower, or missing and perhaps not
needed. Nothing is changed, and nothing is sent to other machines."""

_INDENT = " " * 9


def add_command(add_parser: AddParser) -> None:
    """Add the command."""
    command(
        add_parser,
        "doctor",
        "say what this machine can and cannot do, and what to do about it",
        _run,
        _EPILOG,
    )


def _run(arguments: argparse.Namespace) -> None:
    """Print the findings.

    Raises:
        SystemExit: there is a problem (status 1).
    """
    from ..doctor import advise, look

    findings = advise(look())
    width = max(shutil.get_terminal_size().columns, 40)
    for found in findings:
        text = plain(f"{found.level:9}{found.subject}: {found.text}")
        say(
            textwrap.fill(
                text, width, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False
            )
        )
    if any(found.level == "problem" for found in findings):
        sys.exit(1)
