"""``softs-fast run``: a broker and workers for the time of another command."""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys

from .. import setup_logging
from ..errors import ConfigError, FleetError
from ..fleet import Fleet
from ..fleet.factory import NamedFactory

__all__ = ["run"]

#: A command that was told to end is killed after this time, seconds.
_END_S = 10.0


def run(arguments: argparse.Namespace) -> None:
    """Start a fleet, run the command, and end the fleet.

    Raises:
        SystemExit: always, with the exit status of the command; 128 and its number if a signal has ended it.
        ConfigError: the factory cannot be imported, or the command cannot be run.
        FleetError: a worker failed before it served.
    """
    setup_logging(arguments.log_level)
    command = arguments.script[arguments.script[:1] == ["--"] :]
    if not command:
        raise ConfigError("there is no command to run; give it after --, as in: -- python train.py")
    sys.path.insert(0, os.getcwd())
    make_worker = NamedFactory(arguments.worker)
    make_worker.load()
    status = None
    try:
        with Fleet(make_worker, arguments.count, gpus=arguments.gpus) as fleet:
            status = _status_of(command, {**os.environ, **fleet.endpoints.as_environment()})
    except FleetError as error:
        if status is None:
            raise
        print(f"softs-fast: {error}", file=sys.stderr)
    sys.exit(status)


def _status_of(command: list[str], environment: dict[str, str]) -> int:
    try:
        script = subprocess.Popen(command, env=environment)
    except OSError as error:
        raise ConfigError(f"cannot run {command[0]!r}: {error.strerror}") from error
    try:
        status = script.wait()
    except KeyboardInterrupt:
        # A terminal has sent it to the command too, which may save its work now.
        with contextlib.suppress(subprocess.TimeoutExpired):
            script.wait(_END_S)
        raise
    finally:
        _end(script)
    return status if status >= 0 else 128 - status


def _end(script: subprocess.Popen[bytes]) -> None:
    if script.poll() is not None:
        return
    script.terminate()
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            script.wait(_END_S)
    finally:
        script.kill()
        script.wait()
