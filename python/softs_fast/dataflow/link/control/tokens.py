"""Tokens of a flow: made at random, kept in a file that only this user may read."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from ....errors import ConfigError

__all__ = ["new_token", "read_token", "write_token"]

#: More than the longest token.
_MOST_BYTES = 1024


def new_token() -> str:
    """Return a random token of 256 bits."""
    return secrets.token_urlsafe(32)


def write_token(path: Path, token: str) -> None:
    """Write a token to a new file of mode 0600.

    Raises:
        ConfigError: the file exists, or cannot be made.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"cannot make the token file {path}: {error.strerror}") from error
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(token + "\n")


def read_token(path: Path) -> str:
    """Read a token from a file.

    Raises:
        ConfigError: the file cannot be read, is too large, or other users may read it.
    """
    try:
        with open(path, encoding="ascii") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read(_MOST_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the token file {path}: {error}") from error
    if mode & 0o077:
        raise ConfigError(
            f"the token file {path} has mode {mode:04o}, so other users may read it; chmod 600 {path}"
        )
    if len(text) > _MOST_BYTES:
        raise ConfigError(f"the token file {path} has more than {_MOST_BYTES} characters")
    return text.strip()
