"""What a launcher tells a process: its number, and the job to which it belongs."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping

__all__ = ["DEFAULT_JOB", "default_worker_id", "launched_job", "launched_seat", "new_incarnation"]

#: Name of a job that has no other one.
DEFAULT_JOB = "job"

# Number of the worker in the job, by launcher: torchrun, SLURM, Kubernetes' indexed jobs, Open MPI, MPICH.
_NUMBERS = ("RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
# Its job. A coordinator is another step of the same job of SLURM, so the step is no part of the name.
_JOBS = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
# What torchrun says if it was given no id.
_NO_ID = "none"
# The wire has numbers below 2^53.
_INCARNATION_BITS = 53


def launched_seat(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return the number that a launcher has given to this process; None if there was none."""
    for name in _NUMBERS:
        value = environment.get(name, "")
        if value.isdecimal():
            return int(value)
    return None


def launched_job(environment: Mapping[str, str] = os.environ) -> str:
    """Return the job of which a launcher says that this process is; `DEFAULT_JOB` if none says so."""
    for name in _JOBS:
        value = environment.get(name, "")
        if value and value != _NO_ID:
            return value
    return DEFAULT_JOB


def default_worker_id(seat: int | None) -> str:
    """Return a name that a worker has again after a restart: by its number, or else by host and process."""
    return f"worker-{seat}" if seat is not None else f"{socket.gethostname()}-{os.getpid()}"


def new_incarnation() -> int:
    """Return a number for this process of a worker: random, because clocks of hosts differ."""
    return secrets.randbits(_INCARNATION_BITS)
