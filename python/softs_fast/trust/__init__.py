"""Where a server is, which machines reach it, and with which files both ends prove what they are: one rule for all rooms.

| question | answer |
|---|---|
| which host and port a text names | `Address.parse` |
| where a service of a job is, by the one form that all rooms take | `Place.parse` |
| whether a server may listen there, or a client connect | `check_reachable` |
| certificates of gRPC and of Python's ssl, from PEM files or a token file | `TlsFiles` |
| tokens, and the files in which they are | `read_tokens`, `write_token`, `rotate_token` |
| why certificates of two ends do not fit | `refusal_of`, `tls_problem` |
| when a client warns of a server that is away, and when it stops | `Outage` |

Files may be replaced at any time: a server looks at them at each handshake, a client at each connection. What a server
cannot use any more leaves it with what it had, and is logged.
"""

from .addresses import Address, UnknownHostError, bracketed, check_reachable, is_loopback
from .handshake import refusal_of, tls_problem
from .outage import CONNECT_S, Attempt, Outage
from .places import Place
from .tls import Der, TlsFiles, jobs_of
from .tokens import new_token, read_tokens, rotate_token, write_token

__all__ = [
    "CONNECT_S",
    "Address",
    "Attempt",
    "Der",
    "Outage",
    "Place",
    "TlsFiles",
    "UnknownHostError",
    "bracketed",
    "check_reachable",
    "is_loopback",
    "jobs_of",
    "new_token",
    "read_tokens",
    "refusal_of",
    "rotate_token",
    "tls_problem",
    "write_token",
]
