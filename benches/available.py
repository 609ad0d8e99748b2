"""Checks whether a further side can be measured here: its software is installed, its package has the option."""

from __future__ import annotations

import importlib
import importlib.util
import inspect

from benches.opponents import OPPONENTS
from benches.scenarios import Side


def missing(side: Side) -> str:
    """Return why a side cannot be measured; an empty text if it can."""
    if side.opponent:
        module = OPPONENTS[side.opponent].module
        return "" if importlib.util.find_spec(module) else f"{module} is not installed"
    options = [
        (side.batch_generator, side.supplier, "Supplier", "batch_generator_fn"),
        (side.zero_copy, side.client, "SoftDataLoader", "zero_copy"),
        (side.prefetch is not None, side.client, "Client", "prefetch"),
    ]
    for wanted, module, name, argument in options:
        if wanted:
            parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters
            if argument not in parameters:
                return f"{module}.{name} has no argument {argument}"
    return ""
