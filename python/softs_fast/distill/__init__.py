"""Distillation with models that change: workers make samples of the model that the leading student has set.

`dataset`, `ddp_switch` and the names that they define need torch; they are loaded on first access.
"""

from typing import TYPE_CHECKING, Any

from .student import SampleRef, StudentClient
from .worker import Worker

if TYPE_CHECKING:
    from .dataset import DistillDataLoader, DistillIterableDataset
    from .ddp_switch import switch_model

__all__ = [
    "DistillDataLoader",
    "DistillIterableDataset",
    "SampleRef",
    "StudentClient",
    "Worker",
    "switch_model",
]

_NEED_TORCH = {
    "DistillDataLoader": "dataset",
    "DistillIterableDataset": "dataset",
    "switch_model": "ddp_switch",
}


def __getattr__(name: str) -> Any:
    module = _NEED_TORCH.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    from ..tensors.dtypes import import_torch

    import_torch()
    globals()[name] = value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
