"""Devices and dtypes of models, by name."""

from __future__ import annotations

import torch

from ..configs import dtype_to_torch, torch_dtype_to_str
from ..errors import ConfigError

__all__ = ["device_here", "device_named", "dtype_named"]


def device_named(device: object) -> str | None:
    """Return a device as text; None stays None.

    Raises:
        ConfigError: there is no such kind of device.
    """
    if device is None:
        return None
    try:
        return str(torch.device(device))  # type: ignore[call-overload]
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device {device!r} is none that torch knows: {error}") from error


def device_here(name: str | None) -> torch.device:
    """Return the device of this process: the one of that name; with None the first GPU, or the CPU without one.

    Raises:
        ConfigError: this process does not see it.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    n_seen = torch.cuda.device_count() if device.type == "cuda" else 1
    if (device.index or 0) >= n_seen:
        raise ConfigError(
            f"device {name!r} is not visible here: have {n_seen} GPUs; use device=None or 'cpu'"
        )
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
