"""``softs-fast evaluate``: what a job says of a model that a parameter server has trained."""

from __future__ import annotations

import argparse
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .output import say

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> None:
    """Print the result of the job's `evaluate`.

    Raises:
        ConfigError: the job has none, or the file cannot be used.
    """
    import torch

    from ..paramserver.job import load_job

    job = load_job(arguments.job)
    if job.evaluate is None:
        raise ConfigError(f"the job {arguments.job} has no evaluate; give it a function of the module")
    module = job.model()
    state: Any = _read(arguments.file)
    try:
        module.load_state_dict(state)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(
            f"{arguments.file} is not of the model of {arguments.job}: {str(error).splitlines()[0]}"
        ) from None
    module.eval()
    with torch.no_grad():
        say(f"{float(job.evaluate(module)):.6g}")


def _read(path: Path) -> dict[str, Tensor]:
    import torch

    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            loaded: dict[str, Tensor] = load_file(path)
            return loaded
        found: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
        return found
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise ConfigError(f"{path} is no file of weights: {str(error).splitlines()[0]}") from None
