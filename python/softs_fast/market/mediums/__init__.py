"""Mediums: the memory that a client owns and that suppliers write samples into."""

from .base import Medium
from .cuda.medium import CudaIpcMedium
from .filesystem import FilesystemMedium
from .shm import ShmMedium
from .tcp import TCPMedium

__all__ = ["CudaIpcMedium", "FilesystemMedium", "Medium", "ShmMedium", "TCPMedium"]
