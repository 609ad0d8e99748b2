"""Parts of messages: hooks that the flow has not declared, and what of a call a worker has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import WireError
from .checks import boolean, integer, listing, number, text

__all__ = ["HookForm", "SliceForm", "checked_form", "checked_slice"]

_MOST_ROWS = 1 << 20
_NUMBERS = listing(integer(0, (1 << 63) - 1), _MOST_ROWS)


@dataclass(frozen=True)
class HookForm:
    """A hook that the flow has not declared, because a caller has posted it; never a function of the user's.

    Attributes:
        kind: name of its class.
        roles: numbers of its roles.
        eta: of a mix of weights.
        folder: of a checkpoint, or the path of a file of rows.
        column: see `LoadRows`, like the next two.
    """

    kind: str
    roles: tuple[int, ...]
    eta: float = 1.0
    folder: str = ""
    column: str = ""
    pieces: tuple[int, ...] = ()
    groups: tuple[int, ...] = ()


@dataclass(frozen=True)
class SliceForm:
    """What one worker of several has of the rows of a call; see `Slice`."""

    n_real: int
    n_rows: int
    n_all: int
    n_ranks: int
    is_head: bool
    longest: tuple[int, ...]


def checked_form(name: str, value: Any) -> HookForm:
    """Return the form of a hook, of a list of its fields."""
    if type(value) is not list or len(value) != 7:
        raise WireError(f"{name} is {repr(value)[:60]}; need the form of a hook")
    kind, roles, eta, folder, column, pieces, groups = value
    return HookForm(
        text(32)(name, kind),
        listing(integer(0, _MOST_ROWS), 64)(name, roles),
        number(name, eta),
        text(1 << 12)(name, folder),
        text(1 << 10)(name, column),
        _NUMBERS(name, pieces),
        _NUMBERS(name, groups),
    )


def checked_slice(name: str, value: Any) -> SliceForm:
    """Return the slice of a call, of a list of its fields."""
    if type(value) is not list or len(value) != 6:
        raise WireError(f"{name} is {repr(value)[:60]}; need the slice of a call")
    n_real, n_rows, n_all, n_ranks, is_head, longest = value
    for one in (n_rows, n_all, n_ranks):
        integer(1, _MOST_ROWS)(name, one)
    return SliceForm(
        integer(0, n_all)(name, n_real),
        n_rows,
        n_all,
        n_ranks,
        boolean(name, is_head),
        listing(integer(0, (1 << 63) - 1), 1 << 12)(name, longest),
    )
