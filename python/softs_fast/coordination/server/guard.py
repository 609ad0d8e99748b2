"""What a peer has proven, and what it may do with that."""

from __future__ import annotations

from typing import Any

from ..credentials import ServerCredentials

__all__ = ["Denied", "Guard"]

_NO_TEXT = "the certificate has a name that is no text"
#: Roles in certificates (``softs://JOB/ROLE``) that may be workers. A certificate that names no role may be one, too.
_WORKER_ROLES = {"rank", "admin", "holder"}


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
    """Knows peers by their certificates; without them they are processes of this user on this machine.

    Args:
        credentials: Credentials of this server.
        port: Port at which this server listens.
    """

    def __init__(self, credentials: ServerCredentials, port: int) -> None:
        self._credentials = credentials
        self._port = port

    def identity(self, context: Any) -> str | None:
        """Return what a peer has proven to be; None for a process of this user, and for a holder of the job's token.

        Raises:
            Denied: it has proven nothing.
        """
        if self._credentials.token_file is not None:
            # TLS lets in no others, and each of them can pose as any other.
            return None
        if self._credentials.ca is not None:
            return _certified(context)
        # With certificates a server needs no native modules.
        from ..._core import is_ours

        peer = _address(context.peer())
        if peer is None or not is_ours(peer, (peer[0], self._port)):
            raise Denied(
                "the coordinator serves processes of its own user; start it with --token-file or --tls-ca for others",
                True,
            )
        return None

    def worker(self, context: Any) -> str | None:
        """As `identity`, for what members do.

        Raises:
            Denied: it has proven nothing, to be an administrator, or to have another role.
        """
        name = self.identity(context)
        roles = set() if name is None else _roles(context)
        if roles and not roles & _WORKER_ROLES:
            raise Denied(
                f'"{name}" has the role "{", ".join(sorted(roles))}"; a worker needs a certificate with the role rank, or'
                " with none",
                False,
            )
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


def _address(peer: str) -> tuple[str, int] | None:
    """Split a peer as gRPC names it: ``ipv4:127.0.0.1:40000`` or ``ipv6:%5B::1%5D:40000``; None for another form."""
    kind, _, rest = peer.partition(":")
    host, _, port = rest.replace("%5B", "[").replace("%5D", "]").rpartition(":")
    return (host.strip("[]"), int(port)) if kind in ("ipv4", "ipv6") and port.isdigit() else None


def _roles(context: Any) -> set[str]:
    """Return the roles that a certificate names, as links and groups read them."""
    try:
        uris = [uri.decode() for uri in context.auth_context().get("peer_uri", ())]
    except UnicodeDecodeError:
        raise Denied(_NO_TEXT, True) from None
    parts = [uri.split("/") for uri in uris if uri.lower().startswith("softs://")]
    return {part[3] for part in parts if len(part) > 3}


def _certified(context: Any) -> str:
    """Return the URI of a certificate, else its common name."""
    proven = context.auth_context()
    for key in ("peer_uri", "x509_common_name"):
        for value in proven.get(key, ()):
            try:
                return str(value.decode())
            except UnicodeDecodeError:
                raise Denied(_NO_TEXT, True) from None
    raise Denied("the certificate has neither a URI (subject alternative name) nor a common name", True)
