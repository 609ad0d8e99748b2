"""A worker's and an administrator's side of the connection to a coordinator."""

from .calls import CoordinatorClient
from .session import Listener, Session

__all__ = [
    "CoordinatorClient",
    "Listener",
    "Session",
]
