"""``softs-fast paramworker``: takes part in the training of a parameter server."""

from __future__ import annotations

import argparse
import getpass
import sys
from collections.abc import Callable
from pathlib import Path

from ..errors import ConfigError

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  softs-fast paramworker 'softs1.5f...@https://host:8000' --job digits:job
  softs-fast paramworker - --job digits:job                 asks for the invite, so that no list of processes has it
  softs-fast paramworker @invite.txt --job digits:job --url-file ~/Shared/url.txt

The job is a softs_fast.paramserver.job.Job, or a function that returns one; the server loads the same file. Rank, batch
size and local steps are the server's, and so are codec and sizes unless they are given. A worker may sleep, lose the
network, or start again at any time. SIGUSR1 pauses it, and the next SIGUSR1 resumes it. It needs no native module: pip
install 'softs-fast[paramworker]'."""

_MAX_INVITE = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "invite", metavar="INVITE", help="the line that the server printed; - asks for it, @FILE reads it"
    )
    parser.add_argument("--job", required=True, metavar="MODULE:JOB", help="what is trained")
    parser.add_argument(
        "--name", default="", help="of this machine, on the server's page (default: its host name)"
    )
    parser.add_argument(
        "--device", default="auto", help="such as cuda, mps, cpu (default: the first of these that there is)"
    )
    parser.add_argument(
        "--patience", type=float, default=3600.0, metavar="SECONDS",
        help="how long the server may be out of reach (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument(
        "--url-file", type=Path, metavar="FILE",
        help="read the server's URL from there when it has moved, instead of asking",
    )  # fmt: skip
    parser.add_argument(
        "--codec",
        choices=("f32", "bf16", "int8", "top_k"),
        help="of this worker's pushes (default: the server's)",
    )
    parser.add_argument(
        "--top-k", type=float, metavar="FRACTION", help="elements that top_k sends (default: the server's)"
    )
    parser.add_argument(
        "--max-part", type=int, metavar="BYTES", help="of one request of an upload (default: the server's)"
    )
    parser.add_argument("--proxy", metavar="URL", help="an HTTP proxy, such as http://proxy:3128")


def run(arguments: argparse.Namespace) -> None:
    """Take part until the run is over or a signal arrives; then print what was done.

    Raises:
        ConfigError: an option is out of range, the job cannot be loaded, or the server refuses the worker for good.
        PeerLost: the server is out of reach for longer than the patience.
        WireError: a gradient is not finite.
    """
    from ..paramserver.job import load_job
    from ..paramserver.requirements import import_urllib3
    from ..paramserver.wire.invite import Invite
    from ..paramserver.worker.progress import Progress
    from ..paramserver.worker.session import Options
    from ..paramserver.worker.training import chosen_device, pause_on_signal, train

    import_urllib3()
    invite = Invite.parse(_invite(arguments.invite))
    options = Options(
        arguments.name, arguments.patience, arguments.url_file, _ask_url(arguments.url_file), arguments.proxy,
        arguments.codec, arguments.top_k, arguments.max_part,
    )  # fmt: skip
    device = chosen_device(arguments.device)
    job = load_job(arguments.job)
    progress = Progress()
    try:
        with pause_on_signal() as is_paused:
            train(job, invite, options, device, progress, is_paused=is_paused)
    finally:
        progress.end()


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
