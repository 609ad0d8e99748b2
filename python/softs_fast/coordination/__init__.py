"""Which processes take part in a training: a coordinator, its workers, and how they speak with each other.

Its parts are packages of their own, because they need different things:

| package | what | needs |
|---|---|---|
| `job` | the coordinator and a worker as state machines | |
| `server`, `session`, `health` | the process of a coordinator, connections to it, checks of health | grpcio, when they begin |
| `node` | a worker in a training process | grpcio, torch |
| `torchrun` | the coordinator as a rendezvous of torchrun | grpcio, torch |
"""

from .credentials import ClientCredentials, ServerCredentials
from .launcher import launched_job, launched_seat
from .metrics import render_metrics
from .pings import Pings
from .requirements import import_grpc

__all__ = [
    "ClientCredentials",
    "Pings",
    "ServerCredentials",
    "health",
    "import_grpc",
    "job",
    "launched_job",
    "launched_seat",
    "node",
    "render_metrics",
    "server",
    "session",
    "torchrun",
]
