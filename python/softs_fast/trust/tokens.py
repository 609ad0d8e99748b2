"""Tokens: made at random, kept in files that others cannot read."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path
from typing import BinaryIO

from ..durable import write_file
from ..errors import ConfigError
from .kept import read_secret

__all__ = ["new_token", "read_tokens", "rotate_token", "write_token"]

#: At least 128 bits in base64 without padding.
_TOKEN = re.compile(r"[\x21-\x7e]{22,512}")
#: The present one, and the one before it.
_MOST = 2


def new_token() -> str:
    """Return a random token of 256 bits."""
    return secrets.token_urlsafe(32)


def write_token(path: Path) -> str:
    """Write a new token to a new file of mode 0600; return it.

    Raises:
        ConfigError: The file exists, or cannot be made.
    """
    token = new_token()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"cannot make the token file {path}: {error.strerror}") from None
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(token + "\n")
    return token


def rotate_token(path: Path) -> None:
    """Put a new token before the present one, which processes accept until its line is deleted.

    Raises:
        ConfigError: The file cannot be used, or not be replaced, or it has two tokens already.
    """
    before = read_tokens(path)
    if len(before) == _MOST:
        raise ConfigError(
            f"{path} has two tokens, of which hosts may have the second one alone: delete its line on each host first"
        )

    def write(file: BinaryIO) -> None:
        found = path.stat()
        # As a mounted secret, of which root is the owner and which a group may read.
        os.fchown(file.fileno(), found.st_uid, found.st_gid)
        os.fchmod(file.fileno(), found.st_mode & 0o640)
        file.write(f"{new_token()}\n{before[0]}\n".encode())

    try:
        # A link stays one: the file at its end is replaced.
        write_file(Path(os.path.realpath(path)), write)
    except OSError as error:
        raise ConfigError(f"cannot replace the token file {path}: {error.strerror}") from None


def read_tokens(path: Path) -> list[str]:
    """Return the tokens of a file, the one to present first; lines with "#" in front do not count.

    Args:
        path: The file; only this user may read it, or its group if root owns it.

    Raises:
        ConfigError: It cannot be read, others can read it, or it has no token or a malformed one; the text shows no token.
    """
    tokens: list[str] = []
    # What is no text becomes no ASCII. An error of decoding would hold the bytes.
    for number, line in enumerate(read_secret(path).decode(errors="replace").splitlines(), 1):
        token = line.strip()
        if not token or token.startswith("#"):
            continue
        if not _TOKEN.fullmatch(token):
            raise ConfigError(
                f"{path}, line {number}: invalid token, expected 22 to 512 visible ASCII characters without spaces, "
                "random ones; make one: softs-fast keys new FILE"
            )
        if token in tokens or len(tokens) == _MOST:
            raise ConfigError(
                f"{path}, line {number}: expected one token, or a new one before the present one; delete this line"
            )
        tokens.append(token)
    if not tokens:
        raise ConfigError(f"{path} has no token; make one: softs-fast keys new FILE")
    return tokens
