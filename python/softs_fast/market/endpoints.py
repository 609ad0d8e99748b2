"""Where a broker is if no argument names it: the environment, then softs' paths in /tmp."""

from __future__ import annotations

import os
from typing import Literal

from .protocol import ControlEndpoints, EndpointConfig

__all__ = ["EndpointName", "control_beside", "default_endpoint", "variable_of"]

#: An endpoint of a broker.
EndpointName = Literal["frontend", "backend", "control", "control_pub"]

_DEFAULTS: dict[EndpointName, str] = {
    "frontend": EndpointConfig.frontend,
    "backend": EndpointConfig.backend,
    "control": ControlEndpoints.control,
    "control_pub": ControlEndpoints.control_pub,
}


def variable_of(name: EndpointName) -> str:
    """Return the environment variable of an endpoint, such as SOFTS_FAST_FRONTEND."""
    return f"SOFTS_FAST_{name.upper()}"


def default_endpoint(name: EndpointName) -> str:
    """Return the endpoint that the environment names, or softs' default."""
    return os.environ.get(variable_of(name)) or _DEFAULTS[name]


def control_beside(frontend: str) -> str | None:
    """Return the control endpoint of the broker that has this frontend; None if nothing names one."""
    if frontend != default_endpoint("frontend"):
        return None
    is_softs = frontend == EndpointConfig.frontend
    return os.environ.get(variable_of("control")) or (_DEFAULTS["control"] if is_softs else None)
