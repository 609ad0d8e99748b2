"""Options of a star, and the epoch to which it belongs."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...errors import ConfigError
from ...trust import Address, Place, bracketed
from ..credentials import ClientCredentials, ServerCredentials
from ..pings import Pings

__all__ = ["LARGEST_PIECE", "Epoch", "StarOptions"]

_SMALLEST_PIECE, LARGEST_PIECE = 4 << 10, 8 << 20


@dataclass(frozen=True)
class Epoch:
    """The epoch of a group; a message of any other one is refused.

    Attributes:
        boot: Random number of 64 bits that names the epoch together with the epoch's number.
        number: Number of the epoch.
        workers: Worker id of each rank, which must be its identity, if ranks prove one; empty without a coordinator.
    """

    boot: int
    number: int
    workers: tuple[str, ...] = ()


@dataclass(frozen=True)
class StarOptions:
    """Options of a star. Any rank may become rank 0, so each needs both kinds of credentials.

    Attributes:
        listen: Place at which rank 0 listens, HOST:PORT or ``softs://HOST:PORT/JOB?token_file=FILE``, which is for both
            kinds of credentials; port 0 takes a free one.
        advertise: Host under which the other ranks reach rank 0; None for that of `listen`.
        server: Credentials with which rank 0 proves what it is, and knows the others.
        client: Credentials with which the others prove what they are, and know rank 0.
        pings: Pings by which a rank notices that another one does not answer.
        piece_bytes: Largest number of bytes that are sent at once; rank 0 has up to 8 pieces of each rank in memory.

    Raises:
        ConfigError: an option is out of range, or rank 0 would be reachable from other machines without encryption or
            without a proof of identity.
    """

    listen: str = "127.0.0.1:0"
    advertise: str | None = None
    server: ServerCredentials = field(default_factory=ServerCredentials)
    client: ClientCredentials = field(default_factory=ClientCredentials)
    pings: Pings = field(default_factory=Pings)
    piece_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        if not _SMALLEST_PIECE <= self.piece_bytes <= LARGEST_PIECE or self.piece_bytes % 8:
            raise ConfigError(
                f"piece_bytes is {self.piece_bytes}; need a multiple of 8 from {_SMALLEST_PIECE} to {LARGEST_PIECE}"
            )
        place = Place.parse(self.listen, "rank 0")
        object.__setattr__(self, "listen", place.only_address("rank 0"))
        # The variable does not complete PEM files of one kind by a token of the other.
        has_files = any(one.has_certificate or one.verifies_peers for one in (self.server, self.client))
        if place.token_file is not None or not has_files:
            for name in ("server", "client"):
                object.__setattr__(self, name, place.credentials_or(getattr(self, name)))
        address = Address.parse(self.listen, "rank 0")
        self.server.check(address, "rank 0")
        if self.advertise is None and address.is_unspecified:
            raise ConfigError(
                f"rank 0 listens at {self.listen}, which is no address that others can connect to; give advertise="
            )

    def advertised(self, port: int) -> str:
        """Return the address of rank 0 for the other ranks."""
        host = self.advertise if self.advertise is not None else Address.split(self.listen, "rank 0")[0]
        return f"{bracketed(host)}:{port}"
