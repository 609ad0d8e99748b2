"""Devices and dtypes of models, by name."""

from __future__ import annotations

import torch

from ..configs import dtype_to_torch, torch_dtype_to_str
from ..errors import ConfigError
from ..tensors import check_visible, named_device

__all__ = ["device_here", "device_named", "dtype_named"]


def device_named(device: object) -> str | None:
    """Return a device as text; None stays None.

    Raises:
        ConfigError: there is no such kind of device.
    """
    return None if device is None else str(named_device(device))


def device_here(name: str | None) -> torch.device:
    """Return the device of this process: the one of that name; with None the first GPU, or the CPU without one.

    Raises:
        ConfigError: this process does not see it.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    check_visible(device)
    return device


def dtype_named(dtype: object) -> str | None:
    """Return a floating-point dtype as text; None stays None.

    Raises:
        ConfigError: it is none.
    """
    if dtype is None:
        return None
    name = torch_dtype_to_str(dtype) if isinstance(dtype, torch.dtype) else str(dtype)
    if not dtype_to_torch(name).is_floating_point:
        raise ConfigError(f"dtype must be one of floating-point numbers, got {name!r}")
    return name
