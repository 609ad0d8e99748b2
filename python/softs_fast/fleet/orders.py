"""What a program orders from the workers of a fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..configs import BatchConfig
from ..distill import StudentClient
from ..market import BrokerStats
from .private_broker import PrivateBroker

if TYPE_CHECKING:
    from ..loader import SoftDataLoader

__all__ = ["Orders"]


class Orders:
    """Loaders and students of a fleet's broker."""

    def stats(self) -> BrokerStats:
        """What the broker of this process counts; see `Broker.stats`. A fleet that scales itself is one of the clients."""
        return self._broker().stats()

    def loader(self, product_id: str, batch_config: BatchConfig, **arguments: Any) -> SoftDataLoader:
        """Return a `SoftDataLoader` of a product of this fleet; for suppliers. `arguments` are those of that class."""
        return self._broker().loader(product_id, batch_config, **arguments)

    def student(
        self, slot_count: int, batch_config: BatchConfig, rank: int = 0, **arguments: Any
    ) -> StudentClient:
        """Return a `StudentClient`, which sets the model of workers; `arguments` are those of that class."""
        return self._broker().student(slot_count, batch_config, rank, **arguments)

    def _broker(self) -> PrivateBroker:
        raise NotImplementedError
