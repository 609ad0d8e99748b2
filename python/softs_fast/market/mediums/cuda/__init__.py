"""Slots in the memory of a CUDA device, shared with other processes by CUDA IPC."""

from .arena import Arena
from .medium import CudaIpcMedium

__all__ = [
    "Arena",
    "CudaIpcMedium",
]
