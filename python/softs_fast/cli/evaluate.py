"""``softs-fast evaluate``: what a job says of a model that a parameter server has trained."""

from __future__ import annotations

import argparse

from ..errors import ConfigError
from .output import say

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> None:
    """Print the result of the job's `evaluate`.

    Raises:
        ConfigError: the job has none, or the file cannot be used.
    """
    import torch

    from ..paramserver.job import load_job
    from ..paramserver.server.model_file import read_model

    job = load_job(arguments.job)
    if job.evaluate is None:
        raise ConfigError(f"the job {arguments.job} has no evaluate; give it a function of the module")
    module = job.model()
    state = read_model(arguments.file)
    try:
        module.load_state_dict(state)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(
            f"{arguments.file} is not of the model of {arguments.job}: {str(error).splitlines()[0]}"
        ) from None
    module.eval()
    with torch.no_grad():
        say(f"{float(job.evaluate(module)):.6g}")
