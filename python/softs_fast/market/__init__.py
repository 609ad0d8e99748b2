"""Marketplace: a broker, suppliers, clients, and the mediums that carry samples between them."""

from .broker import Broker
from .client import Client
from .mediums import CudaIpcMedium, FilesystemMedium, Medium, ShmMedium, TCPMedium
from .protocol import BrokerStats, EndpointConfig
from .supplier import Supplier

__all__ = [
    "Broker",
    "BrokerStats",
    "Client",
    "CudaIpcMedium",
    "EndpointConfig",
    "FilesystemMedium",
    "Medium",
    "ShmMedium",
    "Supplier",
    "TCPMedium",
]
