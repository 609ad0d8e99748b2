"""Names of a package that are imported when they are first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["lazy"]


def lazy(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package. Checkers of types ask `if TYPE_CHECKING` imports instead.

    Args:
        package: Name of the package.
        modules: Names that it exports, separated by spaces, by the module that defines them.
    """
    module_of = {name: module for module, names in modules.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f".{module_of[name]}", package), name)

    def names() -> list[str]:
        face = vars(sys.modules[package])
        return sorted({*face, *face["__all__"]})

    return load, names
