"""``softs-fast keys``: makes, replaces and shows the token file of a job."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from ..errors import ConfigError
from .options import AddParser, command, group
from .table import count, say

__all__ = ["add_commands"]

_EPILOG = """\
examples:
  softs-fast keys new job.token
  softs-fast keys rotate job.token
  sed -i 2d job.token                 # when all hosts have the new one

All that can read the file can be any process of the job. docs/security.md tells more."""
#: Units of an age, with their seconds, and how the text of them ends.
_AGES = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


def add_commands(add_parser: AddParser) -> None:
    """Add the commands of a token file."""
    add = group(add_parser, "keys", "make, replace or show the token file of a job")
    for name, summary, run in (
        ("new", "make a token file", _new),
        ("rotate", "put a new token before the present one, which stays valid until its line is deleted", _rotate),
        ("show", "print the fingerprints and the age of a token file, and no token", _show),
    ):  # fmt: skip
        parser = command(add, name, summary, run, _EPILOG)
        parser.add_argument("file", type=Path, metavar="FILE", help="token file of the job")


def _new(arguments: argparse.Namespace) -> None:
    """Make a token file.

    Raises:
        ConfigError: the file exists, or cannot be made.
    """
    from ..trust import write_token

    write_token(arguments.file)
    say(f"{arguments.file}: a new token; copy the file to each host of the job")


def _rotate(arguments: argparse.Namespace) -> None:
    """Put a new token before the present one; one before that is not valid any more.

    Raises:
        ConfigError: the file cannot be used or replaced.
    """
    from ..trust import rotate_token

    rotate_token(arguments.file)
    say(
        f"{arguments.file}: a new token before the present one; copy the file to each host of the job, then delete its "
        "second line on each"
    )


def _show(arguments: argparse.Namespace) -> None:
    """Print fingerprints and age.

    Raises:
        ConfigError: the file cannot be used, or cryptography is not installed.
    """
    from ..trust import TlsFiles

    path: Path = arguments.file
    prints = TlsFiles(token_file=path).fingerprints()
    try:
        age_s = time.time() - path.stat().st_mtime
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    says = ("own certificate signed by", "accepted too")
    lines = [f"{path}: {count(len(prints), 'token')}, changed {_age(age_s)} ago"]
    lines += [f"{found}  {use}" for found, use in zip(prints, says, strict=False)]
    say("\n".join(lines))


def _age(seconds: float) -> str:
    size, unit = next((one for one in _AGES if seconds >= one[0]), _AGES[-1])
    return f"{seconds / size:.0f} {unit}"
