"""The flow of `benches.dataflow_control`: a role on n workers, and a hook that does nothing there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import softs_fast.dataflow as df


class Idle(df.Role):
    """Has no modules, so its process is quick to begin."""

    def read(self, rows: df.Rows) -> None:
        """The flow has to have a function; it is not called."""


def nothing(role: Idle) -> None:
    """A hook that does nothing."""


def numbers() -> Iterator[dict[str, Any]]:
    """Yield rows without end."""
    while True:
        yield {"x": torch.zeros(1)}


def make_flow(n: int) -> df.Flow:
    """Return a flow of n workers."""
    role = df.place(Idle, f"dp{n}", on=range(n), name="idle")
    after = [df.hook(nothing, on=[role])]
    call = df.call(role.read, "x", rows=n, interface=df.Interface.INFERENCE, after=after)
    return df.Flow([call], source=numbers(), watchdog_s=None)
