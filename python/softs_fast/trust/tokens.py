"""Tokens: made at random, kept in files that others cannot read, found by their digests."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
from pathlib import Path

from ..errors import ConfigError
from .kept import Kept, read_secret

__all__ = ["TokenFile", "new_token", "write_token"]

_LOGGER = logging.getLogger(__name__)
#: At least 128 bits in base64 without padding.
_TOKEN = re.compile(r"[\x21-\x7e]{22,512}")


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


class TokenFile:
    """A file of lines ``TOKEN`` or ``NAME TOKEN``; empty lines and those with "#" in front do not count.

    Args:
        path: The file; only this user may read it, or its group if root owns it.
        named: Whether each token must have a name.
        logger: Logger that is told when the file was read again, or cannot be used any more.

    Raises:
        ConfigError: It cannot be read, others can read it, or a line is malformed; the text shows no token.
    """

    def __init__(self, path: Path, *, named: bool = False, logger: logging.Logger = _LOGGER) -> None:
        self._path, self._named = path, named
        self._lines = Kept([path], self._read, logger)

    def own(self) -> str:
        """Return the first token.

        Raises:
            ConfigError: There is none.
        """
        for _, token in self._lines.now().values():
            return token
        raise ConfigError(f"{self._path} has no token")

    def name_of(self, token: str | None) -> str | None:
        """Return the name of a token; None if the file does not have it, or there is no name."""
        # How long the search takes tells nothing about a token that the file has.
        return None if token is None else self._lines.now().get(_digest(token), (None, ""))[0]

    def _read(self) -> dict[bytes, tuple[str | None, str]]:
        # What is no text becomes no ASCII. An error of decoding would hold the bytes.
        text = read_secret(self._path).decode(errors="replace")
        lines: dict[bytes, tuple[str | None, str]] = {}
        for number, line in enumerate(text.splitlines(), 1):
            where, words = f"{self._path}, line {number}", line.split()
            if not words or words[0].startswith("#"):
                continue
            if len(words) not in ((2,) if self._named else (1, 2)):
                form = "NAME TOKEN" if self._named else "TOKEN or NAME TOKEN"
                raise ConfigError(f"{where}: expected {form}, got {len(words)} words")
            if not _TOKEN.fullmatch(words[-1]):
                raise ConfigError(
                    f"{where}: a token has 22 to 512 visible ASCII characters, 128 random bits or more; make one: "
                    "openssl rand -hex 32"
                )
            digest = _digest(words[-1])
            if digest in lines:
                raise ConfigError(f"{where}: an earlier line has this token; each needs its own")
            lines[digest] = (words[0] if len(words) == 2 else None), words[-1]
        return lines


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
