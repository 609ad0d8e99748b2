"""What a peer has proven, and what it may do with that."""

from __future__ import annotations

import logging
from typing import Any

from ...trust import TokenFile
from ..credentials import ServerCredentials
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
        tokens = credentials.tokens
        self._tokens = None if tokens is None else TokenFile(tokens, named=True, logger=logger)

    def identity(self, context: Any) -> str | None:
        """Return what a peer has proven to be; None for a process of this user.

        Raises:
            Denied: it has proven nothing.
        """
        if self._tokens is not None:
            name = self._tokens.name_of(_bearer(context))
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
