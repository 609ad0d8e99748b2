"""A backend of torch.distributed for tensors of one host: `init_process_group("softs")`.

torch finds `register` by the entry point `torch.distributed.backends`, so nothing has to be imported.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from softs_fast.errors import ConfigError

__all__ = ["register"]

NAME = "softs"
_FIRST = (2, 15)


def register() -> None:
    """Make the backend known to torch.distributed; a second call does nothing.

    Raises:
        ConfigError: torch is older than 2.15, which takes no backends in Python.
    """
    if tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) < _FIRST:
        raise ConfigError(
            f'the backend "{NAME}" needs torch 2.15 or newer, this is {torch.__version__}; with older ones use the '
            "strategies of softs_fast.collectives"
        )
    from softs_fast.collectives.backend.door import create

    if not hasattr(dist.Backend, NAME.upper()):
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])
