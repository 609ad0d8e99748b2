"""Collectives between hosts over connections of its own, encrypted by the token file of the job."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from softs_fast.collectives.engine_strategy import EngineStrategy
from softs_fast.collectives.link_engine import LinkEngine
from softs_fast.collectives.rendezvous import as_rendezvous, shown_in, store_of
from softs_fast.errors import ConfigError
from softs_fast.trust import TlsFiles


class LinkStrategy(EngineStrategy):
    """A `Strategy` over connections between all ranks, for ranks of several hosts: alone, or between nodes.

    With a token file each two ranks prove to each other that they belong to the job, and what they send is encrypted. Off
    loopback there is nothing else, unless the network is said to be trusted. Each element is summed once, in the order of the
    ranks, 16-bit floats in float32, so all ranks get the same bits, in every run. A rank that is lost is named.

    Args:
        token_file: Token file of the job (`softs-fast keys new FILE`), the same one for all ranks; None takes that of
            the place where they meet, else that of the variable SOFTS_FAST_TOKEN_FILE, if it is set.
        plain: Whether the network is trusted: neither encryption nor proof, whatever the variable says.
        host: Address of this host at which the others reach it. None takes the address on the way to the process that
            serves the store in which the ranks meet; where no process does, loopback.
        timeout_s: Seconds to wait for the slowest rank, until it comes and in each call.
        name: Name that distinguishes groups that use the same rendezvous.

    Raises:
        ConfigError: There is a token file, and the network is trusted, too.

    Example:
        >>> from softs_fast.collectives import LinkStrategy
        >>> def join(rank, size):
        ...     return LinkStrategy(token_file="/etc/job.token").init(rank, size, "softs://host0")
    """

    def __init__(
        self,
        *,
        token_file: str | Path | None = None,
        plain: bool = False,
        host: str | None = None,
        timeout_s: float = 30.0,
        name: str = "link",
    ) -> None:
        if plain and token_file is not None:
            raise ConfigError(f"plain connections use no token file: leave out plain=True, or {token_file}")
        super().__init__()
        self.files = TlsFiles(token_file=None if token_file is None else Path(token_file))
        self._plain = plain
        self._host = host
        self._timeout_s = timeout_s
        self._name = name

    def init(self, rank: int, size: int, rendezvous: object) -> Self:  # type: ignore[override]  # a place is needed
        """Connect to the other ranks; return self. A strategy that was closed may connect to another group.

        Args:
            rank: This process's number.
            size: Number of ranks.
            rendezvous: Place where the ranks meet, as for `ShmStrategy.init`.

        Raises:
            ConfigError: the strategy is in a group already; the token file cannot be used; other machines reach this
                host, and there is neither a token file nor `plain`; or the ranks differ in that, or have different tokens.
            PeerLost: a rank did not join in time, or does not prove that it belongs to the job.
        """
        if self._engine is not None:
            raise ConfigError("this strategy is in a group already; close it first, or make another one")
        place = as_rendezvous(
            rendezvous, rank, size, name=self._name, timeout_s=self._timeout_s, files=self.files
        )
        self._engine = LinkEngine.meet(
            rank,
            size,
            place,
            name=self._name,
            timeout_s=self._timeout_s,
            host=self._host,
            credentials=None if self._plain else shown_in(store_of(place), self.files),
            plain=self._plain,
        )
        self._closed = False
        return self
