"""Devices of torch by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ConfigError
from .dtypes import import_torch

if TYPE_CHECKING:
    import torch

__all__ = ["check_visible", "named_device"]


def named_device(device: object) -> torch.device:
    """Return a device, whether this process sees it or not.

    Args:
        device: anything that `torch.device` takes.

    Raises:
        ConfigError: there is no such kind of device.
        ImportError: torch is not installed.
    """
    try:
        return import_torch().device(device)  # type: ignore[no-any-return]
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device {device!r} is none that torch knows: {error}") from error


def check_visible(device: torch.device) -> None:
    """Check that this process sees a device, if it is a GPU.

    Raises:
        ConfigError: it does not.
    """
    n_seen = import_torch().cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= n_seen:
        raise ConfigError(f"device {str(device)!r} is not visible here: torch sees {n_seen} CUDA devices")
