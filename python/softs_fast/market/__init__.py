"""Marketplace: a broker, suppliers, clients, and the mediums that carry samples between them."""

from .broker import Broker
from .client import Client
from .mediums import FilesystemMedium, Medium, ShmMedium, TCPMedium
from .protocol import BrokerStats, EndpointConfig
from .supplier import Supplier

__all__ = [
    "Broker",
    "BrokerStats",
    "Client",
    "EndpointConfig",
    "FilesystemMedium",
    "Medium",
    "ShmMedium",
    "Supplier",
    "TCPMedium",
]
