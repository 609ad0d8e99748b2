"""The command ``softs-fast``: runs a broker, joins hosts, records samples, shows a market, measures this machine and its GPU."""

from __future__ import annotations

import argparse
import io
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from .. import NATIVE_ERROR, __version__
from ..errors import SoftsError
from . import bench, coordinator, doctor, flow, gpu, host, keys, market, paramserver, record, status
from .table import say

__all__ = ["main", "parser"]

#: Exit status of a program that a signal has ended, as a shell reports it.
_BY_SIGNAL, _INTERRUPTED, _BROKEN_PIPE = 128, 130, 141


class _Terminated(BaseException):
    """SIGTERM or SIGHUP arrived; it ends the running command as KeyboardInterrupt does."""

    def __init__(self, number: int) -> None:
        self.number = number


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the arguments without the program's name; default: those of the process.

    Returns:
        The exit status: 0 done (for broker, host, record, replay, top, ``status --watch`` and ``run`` without a command also
        when SIGINT, SIGTERM or SIGHUP ended them),
        1 failed, 2 there is no GPU that ``gpu`` could check, 129, 130 and 143 ended by SIGHUP, SIGINT or SIGTERM before
        it was done, 141 the reader of the output has closed it.

    Raises:
        SystemExit: the arguments are wrong (status 2), or a command chose the status, or they were ``--help`` or ``--version`` (status 0).
    """
    if sys.stdout is None:
        text = "standard output is closed; if it is not needed, redirect it to /dev/null"
        print(f"softs-fast: {text}", file=sys.stderr)
        return 1
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that cannot show a character must not end the command.
        sys.stdout.reconfigure(errors="backslashreplace")
    arguments, name = argparse.Namespace(endless=False), ""
    # Signals that are ignored at the start stay ignored: nohup ignores SIGHUP. Windows has none.
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    caught = [n for n in numbers if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, _terminate) for number in caught}
    try:
        try:
            arguments = parser().parse_args(argv)
            name = arguments.command
            arguments.run(arguments)
        finally:
            say("", end="")  # the text of --help may be written to a closed pipe, too
    except KeyboardInterrupt:
        return 0 if arguments.endless else _INTERRUPTED
    except _Terminated as ended:
        return 0 if arguments.endless else _BY_SIGNAL + ended.number
    except BrokenPipeError:
        return _BROKEN_PIPE
    except ImportError as error:
        if NATIVE_ERROR is None or not (error.name or "").startswith("softs_fast"):
            raise
        print(f"softs-fast: {name} needs native modules: {NATIVE_ERROR}", file=sys.stderr)
        return 1
    except SoftsError as error:
        print(f"softs-fast: {error}", file=sys.stderr)
        return 1
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands. The code that a command needs is loaded when it runs."""
    parser = argparse.ArgumentParser(
        prog="softs-fast",
        description="Training data from teachers to a student at memory speed, and trainings that survive their workers.",
        epilog="softs-fast COMMAND --help tells more about a command.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"softs-fast {__version__}")
    add_parser = parser.add_subparsers(metavar="COMMAND", required=True).add_parser
    market.add_commands(add_parser)
    host.add_command(add_parser)
    record.add_commands(add_parser)
    status.add_commands(add_parser)
    coordinator.add_commands(add_parser)
    paramserver.add_commands(add_parser)
    flow.add_commands(add_parser)
    keys.add_commands(add_parser)
    doctor.add_command(add_parser)
    bench.add_command(add_parser)
    gpu.add_command(add_parser)
    return parser


def _terminate(number: int, frame: FrameType | None) -> None:
    raise _Terminated(number)
