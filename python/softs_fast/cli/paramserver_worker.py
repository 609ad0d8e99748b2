"""``softs-fast paramserver worker``: takes part in the training of a parameter server."""

from __future__ import annotations

import argparse
import getpass
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ..errors import ConfigError
from .options import PLACE, AddParser, command, option, positive

__all__ = ["add_command", "options_of"]

_Options = TypeVar("_Options")

_EPILOG = """\
examples:
  softs-fast paramserver worker 'softs1.5f...@https://host:8000' digits:job
  softs-fast paramserver worker 'softs://host0?token_file=job.token' digits:job
  softs-fast paramserver worker - digits:job                asks for the invite, so that no list of processes has it
  softs-fast paramserver worker @invite.txt digits:job --url-file ~/Shared/url.txt

The job is a softs_fast.paramserver.job.Job, or a function that returns one; the server loads the same file. Rank, batch
size and local steps are the server's, and so are codec and sizes unless they are given. A worker may sleep, lose the
network, or start again at any time. SIGUSR1 pauses it, and the next SIGUSR1 resumes it. It needs no native module: pip
install 'softs-fast[paramworker]'."""

_MAX_INVITE = 4096


def add_command(add_parser: AddParser) -> None:
    """Add the command."""
    parser = command(add_parser, "worker", "take part in the training of a parameter server", _run, _EPILOG)
    parser.add_argument(
        "invite",
        metavar="INVITE",
        help=f"line that the server printed, or {PLACE}; - asks for it, @FILE reads it",
    )
    parser.add_argument("job", metavar="MODULE:JOB", help="job to train; the server loads the same file")
    text = "name of this machine on the server's page"
    option(parser, "--name", text, metavar="NAME", default="", shown="its host name")
    text = "device such as cuda, mps or cpu"
    option(parser, "--device", text, metavar="DEVICE", default="auto", shown="the first of these that works")
    option(parser, "--rejoin-timeout", default=3600.0)
    text = "file to read the server's URL from when it has moved, instead of asking"
    option(parser, "--url-file", text, type=Path)
    option(parser, "--push-codec", shown="the server's")
    option(parser, "--top-k-fraction", shown="the server's")
    text = "largest number of bytes of one request of an upload"
    option(parser, "--max-part-bytes", text, type=positive, metavar="BYTES", shown="the server's")
    option(parser, "--proxy", "URL of an HTTP proxy, such as http://proxy:3128", metavar="URL")


def options_of(kind: type[_Options], arguments: argparse.Namespace, **more: Any) -> _Options:
    """Return options of a class; those of the command line have the same names, seconds without the suffix `_s`.

    Args:
        kind: Class of the options.
        arguments: Parsed command line.
        more: Options that differ from the command line.
    """
    names = {name: name.removesuffix("_s") for name in kind.__annotations__}
    given = {name: getattr(arguments, its) for name, its in names.items() if hasattr(arguments, its)}
    return kind(**given | more)


def _run(arguments: argparse.Namespace) -> None:
    """Take part until the run is over or a signal arrives; then print what was done.

    Raises:
        ConfigError: an option is out of range, the job cannot be loaded, or the server refuses the worker for good.
        PeerLost: the server is out of reach for longer than --rejoin-timeout.
        WireError: a gradient is not finite.
    """
    from ..paramserver import (
        Invite,
        Progress,
        WorkerOptions,
        chosen_device,
        import_package,
        load_job,
        pause_on_signal,
        train,
    )

    import_package("urllib3")
    invite = Invite.parse(_invite(arguments.invite))
    options = options_of(WorkerOptions, arguments, ask_url=_ask_url(arguments.url_file))
    device = chosen_device(arguments.device)
    job = load_job(arguments.job)
    progress = Progress()
    try:
        with pause_on_signal() as is_paused:
            train(job, invite, options, device, progress, is_paused=is_paused)
    finally:
        progress.close()


def _invite(text: str) -> str:
    """Return the line itself, or what a person types or a file has."""
    if text == "-":
        return getpass.getpass("invite: ") if sys.stdin.isatty() else sys.stdin.readline(_MAX_INVITE)
    if text.startswith("@"):
        try:
            with Path(text[1:]).expanduser().open() as file:
                return file.read(_MAX_INVITE)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the invite in {text[1:]}: {error}") from None
    return text


def _ask_url(url_file: Path | None) -> Callable[[], str | None] | None:
    """Return a function that asks for a URL; None where no person can answer."""
    if url_file is not None or not sys.stdin.isatty():
        return None

    def ask() -> str | None:
        try:
            return (
                input("\nno server at the URL for a minute; its new URL, or an empty line to go on: ") or None
            )
        except EOFError:
            return None

    return ask
