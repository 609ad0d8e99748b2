"""Mediums: the memory that a client owns and that suppliers write samples into."""

from .base import Medium, taken_apart
from .creation import create_medium, slot_stride
from .cuda.medium import CudaIpcMedium
from .filesystem import FilesystemMedium
from .segment import SegmentMedium
from .shm import ShmMedium
from .tcp import TCPMedium

__all__ = [
    "CudaIpcMedium",
    "FilesystemMedium",
    "Medium",
    "SegmentMedium",
    "ShmMedium",
    "TCPMedium",
    "create_medium",
    "slot_stride",
    "taken_apart",
]
