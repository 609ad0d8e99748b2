"""What the ends of a coordinator or a star prove themselves with, and how they know each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError
from ..trust import Address, TlsFiles, TokenFile, check_reachable

__all__ = ["ClientCredentials", "ServerCredentials"]


@dataclass(frozen=True)
class ServerCredentials(TlsFiles):
    """What a coordinator proves itself with, and how it knows others: certificates, tokens, or both.

    Attributes:
        tokens: file with a line "NAME TOKEN" for each worker and administrator.
        admins: names that may evict, drain, resize and end; none of them can have a seat.

    Raises:
        ConfigError: only one of cert and key is given, or a CA without them.
    """

    tokens: Path | None = None
    admins: tuple[str, ...] = ("admin",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cert is None and self.ca is not None:
            raise ConfigError("the CA of peers is for TLS: give --tls-cert and --tls-key, too")

    def check(self, address: Address, what: str = "coordinator") -> None:
        """Raise unless these credentials suffice for an address, at which `what` listens.

        Raises:
            ConfigError: other machines could reach it without encryption, or without a proof of identity.
        """
        proof = self.ca is not None or self.tokens is not None
        check_reachable(address, what, tls=self.cert is not None, proof=proof)


@dataclass(frozen=True)
class ClientCredentials(TlsFiles):
    """What a worker or an administrator proves itself with, and how it knows the coordinator; without a CA no TLS.

    Attributes:
        token: file with its token, if the coordinator asks for one.

    Raises:
        ConfigError: only one of cert and key is given, or they are without a CA.
    """

    token: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cert is not None and self.ca is None:
            raise ConfigError("TLS needs the CA of the coordinator: give --tls-ca")

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return what goes with each call: the token, if there is one.

        Raises:
            ConfigError: the file cannot be read, others can read it, or it has no token.
        """
        return () if self.token is None else (("authorization", f"Bearer {TokenFile(self.token).own()}"),)
