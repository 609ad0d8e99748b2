"""The command ``softs-fast``: run a broker, look at a market, measure this machine."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from ..errors import SoftsError
from .arguments import parse

__all__ = ["main"]

#: As a shell sees a program that a signal has ended.
_INTERRUPTED, _TERMINATED, _BROKEN_PIPE = 130, 143, 141


class _Terminated(BaseException):
    """SIGTERM came; passes through whatever is running, as KeyboardInterrupt does."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the arguments without the program's name; default: those of the process.

    Returns:
        The exit status: 0 done (for broker, top and ``stats --watch`` also when SIGINT or SIGTERM ended them), 1 failed, 130 and 143
        ended by SIGINT or SIGTERM before it was done, 141 nobody reads the output any more.

    Raises:
        SystemExit: the arguments are wrong (status 2), or were ``--help`` or ``--version`` (status 0).
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that cannot show a character must not end the command.
        sys.stdout.reconfigure(errors="backslashreplace")
    endless = False
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        try:
            arguments = parse(argv)
            endless = arguments.endless
            arguments.run(arguments)
        finally:
            sys.stdout.flush()  # the text of --help may meet a closed pipe, too
    except KeyboardInterrupt:
        return 0 if endless else _INTERRUPTED
    except _Terminated:
        return 0 if endless else _TERMINATED
    except BrokenPipeError:
        # Python flushes standard output once more when it ends; that must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except SoftsError as error:
        print(f"softs-fast: {error}", file=sys.stderr)
        return 1
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def _terminate(number: int, frame: FrameType | None) -> None:
    raise _Terminated
