"""What a peer has proven, and what it may do with that."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ..credentials import ServerCredentials, file_version, read_tokens
from .logs import LOGGER
from .owners import is_ours

__all__ = ["Denied", "Guard"]


class Denied(Exception):
    """A peer may not do what it asks for.

    Args:
        text: Reason, as text for the user.
        is_unknown: Whether the peer has not proven what it is at all.
    """

    def __init__(self, text: str, is_unknown: bool) -> None:
        super().__init__(text)
        self.is_unknown = is_unknown


class Guard:
    """Knows peers by their certificates or tokens; without either they are processes of this user on this machine.

    Args:
        credentials: Credentials of this server.
        port: Port at which this server listens.
        what: Name of this server, for texts.
        logger: Logger that is told which files are read again.

    Raises:
        ConfigError: the file of tokens cannot be read.
    """

    def __init__(
        self,
        credentials: ServerCredentials,
        port: int,
        what: str = "the coordinator",
        logger: logging.Logger = LOGGER,
    ) -> None:
        self._credentials = credentials
        self._port = port
        self._what = what
        self._tokens = _Tokens(credentials.tokens, logger) if credentials.tokens is not None else None

    def identity(self, context: Any) -> str | None:
        """Return what a peer has proven to be; None for a process of this user.

        Raises:
            Denied: it has proven nothing.
        """
        if self._tokens is not None:
            name = self._tokens.name(_bearer(context))
            if name is None:
                raise Denied(
                    f"{self._what} asks for a token and got none that it knows; give --token-file", True
                )
            return name
        if self._credentials.ca is not None:
            return _certified(context)
        if not is_ours(context.peer(), self._port):
            raise Denied(
                f"{self._what} serves processes of its own user; start it with --token-file or --tls-ca for others",
                True,
            )
        return None

    def worker(self, context: Any) -> str | None:
        """As `identity`, for what members do.

        Raises:
            Denied: it has proven nothing, or to be an administrator.
        """
        name = self.identity(context)
        if name in self._credentials.admins:
            raise Denied(
                f'"{name}" is an administrator, which cannot be a worker; give the worker its own identity',
                False,
            )
        return name

    def administrator(self, context: Any) -> None:
        """As `identity`, for what administrators do.

        Raises:
            Denied: it is none.
        """
        name = self.identity(context)
        if name is not None and name not in self._credentials.admins:
            raise Denied(
                f'"{name}" is no administrator of this job; those are: {", ".join(self._credentials.admins)}',
                False,
            )


class _Tokens:
    """The names of tokens, read again when the file has changed."""

    def __init__(self, path: Path, logger: logging.Logger) -> None:
        self._path = path
        self._logger = logger
        self._version = file_version(path)
        self._names = read_tokens(path)

    def name(self, token: str | None) -> str | None:
        version = file_version(self._path)
        if version != self._version:
            self._version = version
            try:
                self._names = read_tokens(self._path)
                self._logger.info("read the tokens in %s again", self._path)
            except ConfigError as error:
                self._logger.warning("tokens stay as they were: %s", error)
        return None if token is None else self._names.get(hashlib.sha256(token.encode()).digest())


def _bearer(context: Any) -> str | None:
    for key, value in context.invocation_metadata() or ():
        if key == "authorization" and isinstance(value, str) and value.startswith("Bearer "):
            return value.removeprefix("Bearer ")
    return None


def _certified(context: Any) -> str:
    """Return the URI of a certificate, else its common name."""
    proven = context.auth_context()
    for key in ("peer_uri", "x509_common_name"):
        for value in proven.get(key, ()):
            try:
                return str(value.decode())
            except UnicodeDecodeError:
                raise Denied("the certificate has a name that is no text", True) from None
    raise Denied("the certificate has neither a URI (subject alternative name) nor a common name", True)
