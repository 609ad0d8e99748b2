"""Which folders of a job are checkpoints, and which of them are to go: functions of their names."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable

__all__ = ["TRASH", "name_of", "outdated", "partial_name", "steps_in", "unfinished"]

_SEALED, _PARTIAL = "step-", ".partial-"
#: Begin of the name of a folder that is being deleted.
TRASH = ".trash-"


def name_of(step: int) -> str:
    """Return the name of the checkpoint of a step."""
    return f"{_SEALED}{step:08}"


def partial_name(step: int, token: str) -> str:
    """Return the name of a checkpoint while the process of a token writes it."""
    return f"{_PARTIAL}{step:08}-{token}"


def steps_in(names: Iterable[str]) -> list[int]:
    """Return the steps of the checkpoints among the names of a folder, the newest first."""
    found = {name: name.removeprefix(_SEALED) for name in names}
    numbers = {name: int(one) for name, one in found.items() if one.isascii() and one.isdigit()}
    return sorted((step for name, step in numbers.items() if name == name_of(step)), reverse=True)


def unfinished(names: Collection[str], last: float = math.inf) -> set[str]:
    """Return the names of what was not written to its end, of steps up to one, or not deleted to its end."""
    steps = {
        name: name.removeprefix(_PARTIAL).partition("-")[0] for name in names if name.startswith(_PARTIAL)
    }
    partial = {name for name, one in steps.items() if one.isascii() and one.isdigit() and int(one) <= last}
    return partial | {name for name in names if name.startswith(TRASH)}


def outdated(
    names: Collection[str], sealed: int, keep: int, damaged: Collection[str], stays: Callable[[int], bool]
) -> set[str]:
    """Return the names that are to go once a checkpoint is sealed.

    Later checkpoints than that one stay: they are of steps that this run does not have, and count for nothing here. So does
    what another process may be writing.

    Args:
        names: Names in the folder.
        sealed: Step of the checkpoint that was sealed.
        keep: Checkpoints up to that one that stay.
        damaged: Names of checkpoints that did not verify.
        stays: Function that returns whether the checkpoint of a step stays for ever.
    """
    whole = [step for step in steps_in(set(names) - set(damaged)) if step <= sealed]
    old = {name_of(step) for step in whole[keep:] if not stays(step)}
    return old | unfinished(names, sealed) | (set(names) & set(damaged))
