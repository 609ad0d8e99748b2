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
    try:
        return importlib.import_module("urllib3")
    except ImportError as error:
        raise ConfigError(
            f"a worker of a parameter server needs urllib3: {error}; pip install 'softs-fast[paramworker]'"
        ) from None


def import_uvicorn() -> Any:
    """Return the module uvicorn.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return importlib.import_module("uvicorn")
    except ImportError as error:
        raise ConfigError(
            f"a parameter server needs uvicorn: {error}; pip install 'softs-fast[server]'"
        ) from None
