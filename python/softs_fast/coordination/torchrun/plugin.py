"""The entry point of torchrun's group `torchrun.handlers`.

torch loads it wherever `torch.distributed.elastic` is imported, so it imports nothing before a rendezvous is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters

__all__ = ["rendezvous_creator"]


def rendezvous_creator() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """Return the function that makes a rendezvous of torchrun's parameters."""
    return _create


def _create(parameters: RendezvousParameters) -> RendezvousHandler:
    from .rendezvous import CoordinatorRendezvous

    return CoordinatorRendezvous(parameters)
