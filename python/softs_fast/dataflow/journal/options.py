"""What a user says of a journal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...errors import ConfigError
from ..declare.calls import TRAIN
from ..declare.plan import FlowPlan

__all__ = ["Journal", "check_steps"]


@dataclass(frozen=True)
class Journal:
    """A folder with common saves, from the last of which a flow goes on.

    Args:
        folder: Folder of the saves, made if it does not exist; only this user may have access to it.
        save_every: Steps from one common save to the next; the first one is made before the first step.
        max_restarts: Number of times that all workers may be started again after the loss of one, without a new save
            in between.
        rows: Whether a save has what functions have made of rows that are not trained with yet; otherwise that is made again.

    Raises:
        ConfigError: `save_every` is below 1, or `max_restarts` below 0.
    """

    folder: str | Path
    save_every: int = 1
    max_restarts: int = 3
    rows: bool = True

    def __post_init__(self) -> None:
        if self.save_every < 1 or self.max_restarts < 0:
            raise ConfigError(
                f"journal {self.folder}: save_every is {self.save_every} and max_restarts {self.max_restarts}; need at "
                "least 1 and 0"
            )


def check_steps(plan: FlowPlan, save_every: int) -> None:
    """Check that there is a point between two training calls at which each save can be made.

    Raises:
        ConfigError: a call of a training function has rows of the steps before and after a save.
    """
    n_groups = plan.partitions[TRAIN].groups_per_step * save_every
    for one in plan.functions:
        if one.is_strict and n_groups % one.groups:
            raise ConfigError(
                f"save_every is {save_every}: {n_groups * plan.group} rows are trained between two saves, and "
                f"{one.name} takes {one.groups * plan.group} at a time; choose a multiple, so that no call has rows "
                "of both sides of a save"
            )
