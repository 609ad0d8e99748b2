"""Worker functions by name, as a command line gives them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError

__all__ = ["NamedFactory"]


@dataclass(frozen=True)
class NamedFactory:
    """Calls a function that it imports, in whichever process it is called.

    Args:
        name: `package.module:function`, importable in both processes.
    """

    name: str

    def load(self) -> Any:
        """Import the function.

        Raises:
            ConfigError: there is no such module or function; the text says which.
        """
        module, _, path = self.name.partition(":")
        if not module or not path:
            raise ConfigError(f"{self.name!r} is not of the form package.module:function")
        try:
            found: Any = importlib.import_module(module)
        except ImportError as error:
            raise ConfigError(
                f"cannot import {module!r}: {error}; modules in this folder are found too"
            ) from error
        for part in path.split("."):
            if not hasattr(found, part):
                raise ConfigError(f"{module!r} has no {path!r}")
            found = getattr(found, part)
        if not callable(found):
            raise ConfigError(
                f"{self.name!r} is a {type(found).__name__}; it must be a function that returns a Worker"
            )
        return found

    def __str__(self) -> str:
        return self.name

    def __call__(self) -> Any:
        return self.load()()
