"""Packages of extras, which are loaded when a worker or a server starts, and not before."""

from __future__ import annotations

import importlib
from typing import Any, Literal

from ..errors import ConfigError

__all__ = ["import_package"]

_NEEDED_BY = {
    "urllib3": ("a worker of a parameter server", "paramworker"),
    "uvicorn": ("a parameter server", "server"),
}


def import_package(name: Literal["urllib3", "uvicorn"]) -> Any:
    """Return a module.

    Raises:
        ConfigError: it is not installed.
    """
    what, extra = _NEEDED_BY[name]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"{what} needs {name}: {error}; pip install 'softs-fast[{extra}]'") from None
