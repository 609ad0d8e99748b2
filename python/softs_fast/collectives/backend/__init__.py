"""Backends of torch.distributed: `init_process_group("softs")` on one host, `init_process_group("softs+gloo")` on several.

torch finds `register` by the entry point `torch.distributed.backends`, so nothing has to be imported.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from softs_fast.errors import ConfigError

__all__ = ["host_backend", "register"]

NAME = "softs"
#: The name says what carries tensors between hosts.
NAME_BETWEEN_HOSTS = "softs+gloo"
_FIRST = (2, 15)


def register() -> None:
    """Make both backends known to torch.distributed; a second call does nothing.

    Raises:
        ConfigError: torch is older than 2.15, which takes no backends in Python.
    """
    if tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) < _FIRST:
        raise ConfigError(
            f'the backend "{NAME}" needs torch 2.15 or newer, this is {torch.__version__}; with older ones use the '
            "strategies of softs_fast.collectives"
        )
    from softs_fast.collectives.backend.door import create
    from softs_fast.collectives.backend.hosts import create_between

    for name, make in ((NAME, create), (NAME_BETWEEN_HOSTS, create_between)):
        if not hasattr(dist.Backend, name.upper()):
            dist.Backend.register_backend(name, make, extended_api=True, devices=["cpu"])


def host_backend() -> str:
    """Return the name of the backend for ranks of one host, which is known to torch then: gloo, if it is older than 2.15."""
    try:
        register()
    except ConfigError:
        return "gloo"
    return NAME
