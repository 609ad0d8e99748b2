"""Marketplace: a broker, suppliers, clients, and the mediums that carry samples between them."""

from .broker import Broker
from .client import Client, LeaveAfter, own_segment
from .device_output import DeviceOutput
from .endpoints import EndpointName, control_beside, default_endpoint, variable_of
from .failure_text import place_of
from .fleet_report import WorkerReport, read_report, write_report
from .generators import takes_argument
from .mediums import (
    CudaIpcMedium,
    FilesystemMedium,
    Medium,
    SegmentMedium,
    ShmMedium,
    TCPMedium,
    slot_stride,
    taken_apart,
)
from .mediums.cuda import Arena
from .protocol import BrokerStats, ControlEndpoints, EndpointConfig
from .supplier import Supplier

__all__ = [
    "Arena",
    "Broker",
    "BrokerStats",
    "Client",
    "ControlEndpoints",
    "CudaIpcMedium",
    "DeviceOutput",
    "EndpointConfig",
    "EndpointName",
    "FilesystemMedium",
    "LeaveAfter",
    "Medium",
    "SegmentMedium",
    "ShmMedium",
    "Supplier",
    "TCPMedium",
    "WorkerReport",
    "control_beside",
    "default_endpoint",
    "own_segment",
    "place_of",
    "read_report",
    "slot_stride",
    "taken_apart",
    "takes_argument",
    "variable_of",
    "write_report",
]
