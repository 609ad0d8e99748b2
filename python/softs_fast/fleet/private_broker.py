"""A broker in a folder of its own, and what its users order from."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..configs import BatchConfig
from ..distill import StudentClient
from ..market import Broker, BrokerStats, EndpointConfig, EndpointName, ShmMedium, variable_of
from ..process import Closing
from .folder import new_folder

if TYPE_CHECKING:
    from ..loader import SoftDataLoader

__all__ = ["FleetEndpoints", "PrivateBroker"]


@dataclass(frozen=True)
class FleetEndpoints:
    """The endpoints of a fleet's broker; `StudentClient` and `Worker` take them by these names plus ``_endpoint``."""

    frontend: str
    backend: str
    control: str
    control_pub: str

    @property
    def market(self) -> EndpointConfig:
        """Those of clients and suppliers."""
        return EndpointConfig(self.frontend, self.backend)

    def as_environment(self) -> dict[str, str]:
        """Return the variables by which other processes find the broker."""
        names: tuple[EndpointName, ...] = ("frontend", "backend", "control", "control_pub")
        return {variable_of(name): getattr(self, name) for name in names}


class PrivateBroker(Closing):
    """A broker with sockets in a folder that ends with it, or with this process; it serves from construction on.

    Attributes:
        folder: The folder, of mode 0700.
        endpoints: Where it is.
    """

    def __init__(self) -> None:
        self.folder = new_folder()
        places = (f"ipc://{self.folder}/{name}" for name in ("frontend", "backend", "control", "control_pub"))
        self.endpoints = FleetEndpoints(*places)
        try:
            self._broker = Broker(
                self.endpoints.market,
                control_endpoint=self.endpoints.control,
                control_pub_endpoint=self.endpoints.control_pub,
            )
            self._broker.start()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def stats(self) -> BrokerStats:
        """What it counts; see `Broker.stats`."""
        return self._broker.stats

    def wait(self) -> None:
        """Block until it is closed."""
        self._broker.wait()

    def loader(self, product_id: str, batch_config: BatchConfig, **arguments: Any) -> SoftDataLoader:
        """Return a `SoftDataLoader` of a product; `arguments` are those of that class."""
        from ..loader import SoftDataLoader

        arguments = {"medium_cls": ShmMedium, **arguments}
        return SoftDataLoader(product_id, self.endpoints.frontend, batch_config, **arguments)

    def student(
        self, slot_count: int, batch_config: BatchConfig, rank: int = 0, **arguments: Any
    ) -> StudentClient:
        """Return a `StudentClient`; `arguments` are those of that class."""
        places = {
            f"{name}_endpoint": getattr(self.endpoints, name)
            for name in ("frontend", "control", "control_pub")
        }
        return StudentClient(rank, slot_count, batch_config, **{**places, **arguments})

    def close(self) -> None:
        """End the broker, and remove the folder. Idempotent."""
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            stack.callback(self._broker.stop)
