"""Which forms the values of a column have: of values themselves, or by their places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ..column_forms import ValueForm
from .columns import Places
from .places import Place

__all__ = ["forms_of"]

_NUMBER, _TENSORS = ValueForm("number"), ValueForm("list of tensors")
#: Of values that are no tensors, by their type, and by the kind that their places have.
_BY_TYPE = {
    bool: _NUMBER,
    int: _NUMBER,
    float: _NUMBER,
    list: _TENSORS,
    str: ValueForm("text"),
    bytes: ValueForm("bytes"),
}
_BY_KIND = {**{kind.__name__: form for kind, form in _BY_TYPE.items()}, "tensors": _TENSORS}


def forms_of(values: Sequence[Any]) -> dict[ValueForm, int]:
    """Return the different forms of values, with the number of the first value of each. None has no form.

    Args:
        values: Values of a column, or their places.
    """
    if isinstance(values, Places):
        numbers, first = np.unique(values.form_of, return_index=True)
        keys: dict[Any, int] = {
            values.forms[number]: at for number, at in zip(numbers.tolist(), first.tolist(), strict=True)
        }
    else:
        keys = {}
        for at, value in enumerate(values):
            keys.setdefault(_key(value), at)
    found: dict[ValueForm, int] = {}
    for key, at in sorted(keys.items(), key=lambda one: one[1]):
        form = _form(key)
        if form is not None:
            found.setdefault(form, at)
    return found


def _key(value: Any) -> Any:
    """Return what the form follows from: there are few."""
    if isinstance(value, Tensor):
        return value.dtype, value.device, value.ndim
    return (value.kind, value.parts) if isinstance(value, Place) else type(value)


def _form(key: Any) -> ValueForm | None:
    if isinstance(key, type):
        return _BY_TYPE.get(key)
    if isinstance(key[0], str):
        kind, parts = key
        return (
            ValueForm("tensor", parts[0][0], "cpu", len(parts[0][1]))
            if kind == "tensor"
            else _BY_KIND.get(kind)
        )
    dtype, device, ndim = key
    return ValueForm("tensor", str(dtype).removeprefix("torch."), device.type, ndim)
