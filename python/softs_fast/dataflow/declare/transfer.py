"""The hook that brings rows to where the workers of a role read them. Here it is only declared."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import ConfigError
from .columns import Columns
from .hooks import Hook
from .roles import Placement

__all__ = ["DataTransfer", "columns_of", "data_transfer", "names_of"]


@dataclass(frozen=True)
class DataTransfer(Hook):
    """Brings columns of rows to the nodes of the workers that read them.

    Attributes:
        columns: Columns of the flow; empty: those that the function reads, or, after its main part, those that it
            writes.
        ids: Ids of the rows, of a hook after a call; empty: those of the call.
    """

    columns: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """What it is called in timings and in `explain`."""
        return "data_transfer"


def data_transfer(role: Placement | None = None, columns: str | None = None) -> DataTransfer:
    """Return a hook that brings columns of the rows of a call to the nodes of a role; on one node all are there.

    Before a call it brings inputs to its own role, as the first of its steps; after a call it brings columns to a role
    that reads them later.

    Args:
        role: None for that of the function.
        columns: "seq, logp"; default: all inputs of the function, or after it all that it writes.

    Raises:
        ConfigError: `columns` are no names.
    """
    return DataTransfer(() if role is None else (role,), columns=() if columns is None else names_of(columns))


def names_of(columns: str) -> tuple[str, ...]:
    """Return the names of columns of a flow.

    Args:
        columns: "seq, logp".

    Raises:
        ConfigError: they are no names, or one is there twice.
    """
    parsed = Columns.parse(columns)
    if parsed.outputs or parsed.input_remap:
        raise ConfigError(f'columns {columns!r} are moved as they are; need names alone, as "seq, logp"')
    return parsed.inputs


def columns_of(
    hook: DataTransfer, inputs: tuple[str, ...], outputs: tuple[str, ...], *, is_before: bool
) -> tuple[str, ...]:
    """Return the columns that a hook of a function brings.

    Args:
        hook: Hook of the function.
        inputs: Columns that the function reads.
        outputs: Columns that it writes.
        is_before: Whether the hook runs before the main part.
    """
    return hook.columns or (inputs if is_before else outputs)
