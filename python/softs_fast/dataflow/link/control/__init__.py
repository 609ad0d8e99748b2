"""The control stream of a flow: messages in order between one master and its workers.

A native thread in each process reads the stream and answers questions about what the worker has published, so it does
both while Python computes and holds the GIL. The layout of the bytes is in docs/wire.md, section 6.
"""

from ....errors import PeerBusy, PeerTimeout
from .client import ControlClient
from .events import Ended, Joined, Left, Published, Received
from .limits import ControlLimits
from .server import ControlServer

__all__ = [
    "ControlClient",
    "ControlLimits",
    "ControlServer",
    "Ended",
    "Joined",
    "Left",
    "PeerBusy",
    "PeerTimeout",
    "Published",
    "Received",
]
