"""Distillation with models that change: workers make samples of the model that the leading student has set.

`dataset`, `ddp_switch` and the names that they define need torch; they are loaded on first access.
"""

from typing import TYPE_CHECKING, Any

from ..process import lazy
from ..tensors import import_torch
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

_load, __dir__ = lazy(
    __name__, {"dataset": "DistillDataLoader DistillIterableDataset", "ddp_switch": "switch_model"}
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        import_torch()
    return _load(name)
