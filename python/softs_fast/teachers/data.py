"""Data of a teacher that takes tensors: elements of a collection, stacked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import ConfigError
from .arguments import check_picklable

__all__ = ["StackedData", "check_data", "fields_of_element"]

_GIVE = "give a torch dataset, a tensor, a list, or anything else with __len__ and __getitem__"


class StackedData:
    """Elements of a collection as examples; see `tokens.Examples`."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def batch(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """Return elements, stacked: {field: dtype [n, *shape]}."""
        elements = [fields_of_element(self._data[i]) for i in indices]
        return {name: torch.stack([element[name] for element in elements]) for name in elements[0]}


def check_data(data: Any) -> None:
    """Check that data can be read by every worker.

    Raises:
        ConfigError: it has no elements, or cannot be sent to a process.
    """
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__") or isinstance(data, Mapping):
        raise ConfigError(f"data of type {type(data).__name__} has no elements by number; {_GIVE}")
    if not len(data):
        raise ConfigError("data are empty; need at least one element")
    check_picklable(data, "data", _GIVE)


def fields_of_element(element: Any) -> dict[str, Tensor]:
    """Return the tensors of an element by name: a mapping's own, "0", "1", ... of a tuple, or "input".

    Raises:
        ConfigError: there is something else in it.
    """
    if isinstance(element, tuple | list):
        element = {str(i): value for i, value in enumerate(element)}
    fields = element if isinstance(element, Mapping) else {"input": element}
    return {str(name): _tensor(str(name), value) for name, value in fields.items()}


def _tensor(name: str, value: Any) -> Tensor:
    try:
        return value if isinstance(value, Tensor) else torch.as_tensor(value, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"field {name!r} of data is of type {type(value).__name__}; need a tensor, an array or a number"
        ) from error
