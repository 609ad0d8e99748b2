"""Which forms the values of a column have: of values themselves, or by their places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from ...errors import FlowError
from .columns import Places
from .places import Place

__all__ = ["ColumnForms", "ValueForm", "forms_of"]


@dataclass(frozen=True)
class ValueForm:
    """What all values of a column have in common.

    Attributes:
        kind: "tensor", "list of tensors", "text", "bytes" or "number".
        dtype: Dtype of a tensor; empty for other values, like the device.
        device: Type of the tensor's device, such as "cuda".
        ndim: Number of dimensions of the tensor.
    """

    kind: str
    dtype: str = ""
    device: str = ""
    ndim: int = 0

    def __str__(self) -> str:
        if self.kind != "tensor":
            return f"a {self.kind}" if self.kind != "bytes" else self.kind
        dims = "dimension" if self.ndim == 1 else "dimensions"
        article = "an" if self.dtype.startswith("int") else "a"
        return f"{article} {self.dtype} tensor of {self.ndim} {dims} on {self.device}"


class ColumnForms:
    """Knows the form of each column from its first value.

    A batch of values of two forms would be a list, where the function has had a tensor until then, and its arithmetic
    another one.
    """

    def __init__(self) -> None:
        #: By partition and column, the form and the row that had it first.
        self._first: dict[tuple[str, str], tuple[ValueForm, int | str]] = {}

    def check(
        self,
        partition: str,
        column: str,
        forms: Mapping[ValueForm, int],
        ids: Sequence[int | str],
        maker: str,
    ) -> None:
        """Note the form of a column's first value, and check all others.

        Args:
            partition: Partition of the rows.
            column: Name of the column.
            forms: Different forms of the values, with the place in `ids` of the first value of each.
            ids: Ids of the rows, or words in their place.
            maker: Maker of the values, for errors.

        Raises:
            FlowError: A value has another form than the first of the column.
        """
        for form, place in forms.items():
            first, row_id = self._first.setdefault((partition, column), (form, ids[place]))
            if form != first:
                raise FlowError(
                    f"column {column!r} of {maker}: row {ids[place]} has {form}; expected {first}, as row {row_id} has: "
                    "have it return one dtype and number of dimensions"
                )


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
