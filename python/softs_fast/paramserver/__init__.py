"""A parameter server for a few machines on the internet: its rounds, its wire, its server, its worker.

Each name is loaded when it is asked for: a worker needs none of the server's packages, and a server listens before it
loads torch.
"""

from typing import TYPE_CHECKING

from ..process import lazy

if TYPE_CHECKING:
    from ..trust import TlsFiles
    from .job import Job, load_job
    from .owner.access import OwnerAccess, read_owner, write_owner
    from .owner.client import OwnerClient
    from .requirements import import_package
    from .rounds.options import RunOptions
    from .server.http.listening import listen
    from .server.options import ServerOptions
    from .server.server import Server
    from .server.service import Service
    from .server.training.model_file import read_model
    from .wire.invite import Invite
    from .wire.messages import Control, RunConfig, Status
    from .wire.signing import owner_key
    from .worker.batches import order
    from .worker.optimizer import RemoteOptimizer
    from .worker.options import WorkerOptions
    from .worker.progress import Progress
    from .worker.training import chosen_device, pause_on_signal, train
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            ".trust": "TlsFiles",
            "job": "Job load_job",
            "owner.access": "OwnerAccess read_owner write_owner",
            "owner.client": "OwnerClient",
            "requirements": "import_package",
            "rounds.options": "RunOptions",
            "server.http.listening": "listen",
            "server.options": "ServerOptions",
            "server.server": "Server",
            "server.service": "Service",
            "server.training.model_file": "read_model",
            "wire.invite": "Invite",
            "wire.messages": "Control RunConfig Status",
            "wire.signing": "owner_key",
            "worker.batches": "order",
            "worker.optimizer": "RemoteOptimizer",
            "worker.options": "WorkerOptions",
            "worker.progress": "Progress",
            "worker.training": "chosen_device pause_on_signal train",
        },
    )

__all__ = [
    "Control",
    "Invite",
    "Job",
    "OwnerAccess",
    "OwnerClient",
    "Progress",
    "RemoteOptimizer",
    "RunConfig",
    "RunOptions",
    "Server",
    "ServerOptions",
    "Service",
    "Status",
    "TlsFiles",
    "WorkerOptions",
    "chosen_device",
    "import_package",
    "listen",
    "load_job",
    "order",
    "owner_key",
    "pause_on_signal",
    "read_model",
    "read_owner",
    "train",
    "write_owner",
]
