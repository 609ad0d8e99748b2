"""The options of a run: how many workers it expects, and when pushes are applied."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ...errors import ConfigError
from ..wire.limits import MAX_SAMPLES
from ..wire.messages import Mode

__all__ = ["MAX_TEXT", "MAX_WORKERS", "RunOptions", "ScaleRate"]

#: Members of a run, at most.
MAX_WORKERS = 4096
#: Characters of a name or a reason, at most.
MAX_TEXT = 200

ScaleRate = Literal["world", "none"]


@dataclass(frozen=True)
class RunOptions:
    """Options of a run.

    Attributes:
        world_size: Workers that the run expects; its first round waits for this number.
        rounds: Versions of the weights after which the run ends.
        mode: `bsp`: all push for one version, then one step. `ssp`: each push is a step, and no worker is more than
            `max_lead` pushes ahead of the slowest. `async`: each `pushes_per_step` pushes are a step, if they are not older than
            `max_age` versions.
        quorum: Pushes that a round of `bsp` needs; None: half of the world. As `world_size`: strict.
        round_samples: Samples with which a round of `bsp` closes at once; None: no bound.
        round_timeout_s: Seconds from its opening after which a round of `bsp` with a quorum closes; None: the times
            of earlier pushes decide.
        max_lead: Pushes that a worker of `ssp` may be ahead of the slowest; see `mode`.
        pushes_per_step: Pushes in a step of `async`; see `mode`.
        max_age: Greatest age of a push of `async`, in versions; see `mode`.
        scale_rate: `world`: the learning rate of a round of `bsp` is multiplied by the number of workers that were
            averaged; `none`: it is not.
        lost_after_s: Seconds of silence after which a member is removed.
        dataset_size: Samples of an epoch; 0: the server hands out none.
        epochs: Epochs of the data, at most; None for any number.
        save_every: Versions between two files.
        max_workers: Members at a time, at most.

    Raises:
        ConfigError: a value is out of range.
    """

    world_size: int
    rounds: int
    mode: Mode = "bsp"
    quorum: int | None = None
    round_samples: int | None = None
    round_timeout_s: float | None = None
    max_lead: int = 0
    pushes_per_step: int = 1
    max_age: int = 16
    scale_rate: ScaleRate = "world"
    lost_after_s: float = 20.0
    dataset_size: int = 0
    epochs: int | None = None
    save_every: int = 1
    max_workers: int = 256

    def __post_init__(self) -> None:
        if self.mode not in ("bsp", "ssp", "async"):
            raise ConfigError(f'mode of the run is "{self.mode}"; need bsp, ssp or async')
        if self.scale_rate not in ("world", "none"):
            raise ConfigError(f'scale_rate of the run is "{self.scale_rate}"; expected world or none')
        for name, least, most in (
            ("world_size", 1, MAX_WORKERS),
            ("rounds", 1, 1 << 62),
            ("quorum", 1, self.world_size),
            ("round_samples", 1, MAX_SAMPLES),
            ("max_lead", 0, 1 << 31),
            ("pushes_per_step", 1, MAX_WORKERS),
            ("max_age", 0, 1 << 31),
            ("dataset_size", 0, MAX_SAMPLES),
            ("epochs", 1, 1 << 31),
            ("save_every", 1, 1 << 31),
            ("max_workers", 1, MAX_WORKERS),
        ):
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ConfigError(f"{name} of the run is {value}; need {least} to {most}")
        for name in ("lost_after_s", "round_timeout_s"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"{name} of the run is {value}; need seconds, more than 0")
        if self.max_workers < self.world_size:
            raise ConfigError(
                f"max_workers of the run is {self.max_workers}; need {self.world_size} or more, its world_size"
            )

    @cached_property
    def needed(self) -> int:
        """Pushes that a round of `bsp` needs."""
        return (self.world_size + 1) // 2 if self.quorum is None else self.quorum
