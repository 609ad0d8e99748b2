"""Slots in the memory of a CUDA device, shared with other processes by CUDA IPC."""

from .medium import CudaIpcMedium

__all__ = ["CudaIpcMedium"]
