"""What is trained: one object that the server and each worker load from the same file."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn, optim

from ..errors import ConfigError

__all__ = ["Job", "Samples", "load_job", "sgd"]


class Samples(Protocol):
    """Data with numbered samples, such as `torch.utils.data.TensorDataset`."""

    def __len__(self) -> int:
        """Return how many samples there are."""

    def __getitem__(self, index: int, /) -> Any:
        """Return one sample: tensors, or tuples, lists and dicts of these."""


def sgd(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
    """Return plain SGD with a learning rate of 0.1, the optimizer of a job that names none."""
    return optim.SGD(parameters, lr=0.1)


@dataclass(frozen=True)
class Job:
    """What is trained.

    Attributes:
        model: returns a new module; the server's first weights are the ones that count.
        loss: takes the module and a batch on the module's device, and returns the mean loss of the batch, a scalar.
        data: returns the samples; only workers call it.
        optimizer: takes parameters and returns the server's optimizer.
        local_optimizer: takes parameters and returns the one of a worker, for local steps.
        collate: makes a batch of a list of samples; None for that of torch.
        evaluate: takes a module and returns a number for the server to report, such as an accuracy; None for none.
        schedule: takes the server's optimizer and returns a learning-rate scheduler of torch, which does a step after each
            of the optimizer; None for a constant rate.
    """

    model: Callable[[], nn.Module]
    loss: Callable[[nn.Module, Any], Tensor]
    data: Callable[[], Samples]
    optimizer: Callable[[Iterable[nn.Parameter]], optim.Optimizer] = sgd
    local_optimizer: Callable[[Iterable[nn.Parameter]], optim.Optimizer] = sgd
    collate: Callable[[Sequence[Any]], Any] | None = None
    evaluate: Callable[[nn.Module], float] | None = None
    schedule: Callable[[optim.Optimizer], optim.lr_scheduler.LRScheduler] | None = None


def load_job(name: str) -> Job:
    """Return the job that `MODULE:NAME` names: a Job, or a function that returns one.

    The present folder is searched first. Code of the job runs: load only what you trust.

    Raises:
        ConfigError: the name has no colon, the module cannot be imported, or the object is no job.
    """
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise ConfigError(f"the job is {name!r}; need MODULE:NAME, such as digits:job")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(f"the module {module_name!r} of the job cannot be imported: {error}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(
                f"the module {module_name!r} has no {attribute!r}; need a Job, or a function that returns one"
            )
        found = getattr(found, part)
    job = found if isinstance(found, Job) else found() if callable(found) else found
    if not isinstance(job, Job):
        raise ConfigError(f"{name} is {type(job).__name__}; need a softs_fast.paramserver.job.Job")
    return job
