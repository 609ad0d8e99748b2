"""The number that a launcher gives to a worker, and its name."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

# Number of the worker in the job, by launcher: torchrun, SLURM, Kubernetes' indexed jobs, Open MPI, MPICH.
_NUMBERS = ("RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def launched_seat(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return the number that a launcher has given to this process; None if there was none."""
    for name in _NUMBERS:
        value = environment.get(name, "")
        if value.isdecimal():
            return int(value)
    return None


def default_worker_id(seat: int | None) -> str:
    """Return a name that a worker has again after a restart: by its number, or else by host and process."""
    return f"worker-{seat}" if seat is not None else f"{socket.gethostname()}-{os.getpid()}"
