"""Backends of torch.distributed: `init_process_group("softs")`; `init_process_group("softs+plain")` without encryption between hosts.

torch finds `register` by the entry point `torch.distributed.backends`, so nothing has to be imported.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from softs_fast.errors import ConfigError

__all__ = ["host_backend", "hosts_backend", "register"]

NAME = "softs"
#: For hosts on a network that is trusted: neither encryption nor proof.
NAME_PLAIN = "softs+plain"
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
    from softs_fast.collectives.backend.hosts import create, create_plain

    for name, make in ((NAME, create), (NAME_PLAIN, create_plain)):
        if not hasattr(dist.Backend, name.upper()):
            dist.Backend.register_backend(name, make, extended_api=True, devices=["cpu"])


def host_backend() -> str:
    """Return the name of the backend for ranks of one host, which is known to torch then: gloo, if it is older than 2.15."""
    try:
        register()
    except ConfigError:
        return "gloo"
    return NAME


def hosts_backend() -> str:
    """Return the name of the backend for ranks of several hosts, which is known to torch then.

    Raises:
        ConfigError: torch is older than 2.15.
    """
    register()
    return NAME
