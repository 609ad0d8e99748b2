"""One form for each column: what its first value is, all are. Pure: no tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import FlowError

__all__ = ["ColumnForms", "ValueForm"]


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
