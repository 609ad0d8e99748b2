"""What the ends of a coordinator prove themselves with, and how they know each other."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigError
from ..trust import Address, TlsFiles, check_reachable

__all__ = ["ClientCredentials", "ServerCredentials"]


@dataclass(frozen=True)
class ServerCredentials(TlsFiles):
    """What a coordinator proves itself with, and how it knows others: by the token of their job, or by certificates.

    Attributes:
        admins: names in certificates that may evict, drain, resize and end; none of them can have a seat. Each holder of
            a token file may do all that.

    Raises:
        ConfigError: only one of cert and key is given, or a CA without them.
    """

    admins: tuple[str, ...] = ("admin",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cert is None and self.ca is not None:
            raise ConfigError("the CA of peers is for TLS: give --tls-cert and --tls-key, too")

    def check(self, address: Address) -> None:
        """Raise unless these credentials suffice for an address at which a coordinator listens.

        Raises:
            ConfigError: other machines could reach it without encryption, or without a proof of identity.
        """
        check_reachable(address, "coordinator", tls=self.has_certificate, proof=self.verifies_peers)


@dataclass(frozen=True)
class ClientCredentials(TlsFiles):
    """What a worker or an administrator proves itself with, and how it knows the coordinator; without either no TLS.

    Raises:
        ConfigError: only one of cert and key is given, or they are without a CA.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cert is not None and self.ca is None:
            raise ConfigError("TLS needs the CA of the coordinator: give --tls-ca")
