"""Why a server cannot be reached, and what a client does about it.

`refusal_of` reads the error of a handshake, `tls_problem` makes one; `Outage` decides, without a clock, when to warn and when to stop.
"""

from .handshake import refusal_of, tls_problem
from .outage import Attempt, Outage

__all__ = ["Attempt", "Outage", "refusal_of", "tls_problem"]
