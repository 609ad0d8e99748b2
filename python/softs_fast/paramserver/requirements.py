"""Packages of extras, which are loaded when a worker or a server starts, and not before."""

from __future__ import annotations

import importlib
from typing import Any

from ..errors import ConfigError

__all__ = ["import_urllib3", "import_uvicorn"]


def import_urllib3() -> Any:
    """Return the module urllib3.

    Raises:
        ConfigError: it is not installed.
    """
    return _import("urllib3", "a worker of a parameter server", "paramworker")


def import_uvicorn() -> Any:
    """Return the module uvicorn.

    Raises:
        ConfigError: it is not installed.
    """
    return _import("uvicorn", "a parameter server", "server")


def _import(module: str, what: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"{what} needs {module}: {error}; pip install 'softs-fast[{extra}]'") from None
