"""When a rank publishes and how long it waits for others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from softs_fast.averaging.decide import Rules
from softs_fast.errors import ConfigError


@dataclass(frozen=True)
class Schedule:
    """When a rank publishes, and how it judges its metric.

    Attributes:
        publish_every: Steps from one snapshot to the next that others did not ask for; None for the `every` of the
            rules. A snapshot is never begun before twice the time of the last copy has gone by.
        max_wait_steps: Steps that a rank waits at a check for the reports of others, and after its decision for newer
            snapshots of its donors; then it takes what there is. With 0 it compares itself with those ranks alone that
            have reported the check before. In a group of fixed size reports are waited for as long as a rank lives and
            has not fallen behind.
        smoothing: Share of the earlier metric in the new one, from 0 to below 1.
        seed: Seed of all random choices.
        log: File to which a line of JSON is added for each check; `replay` reads it.

    Raises:
        ConfigError: a value is out of range.
    """

    publish_every: int | None = None
    max_wait_steps: int = 10
    smoothing: float = 0.0
    seed: int = 0
    log: str | Path | None = None

    def __post_init__(self) -> None:
        if self.publish_every is not None and self.publish_every < 1:
            raise ConfigError(f"publish_every is {self.publish_every}; it counts steps, from 1")
        if self.max_wait_steps < 0:
            raise ConfigError(f"max_wait_steps is {self.max_wait_steps}; it counts steps, from 0")
        if not 0 <= self.smoothing < 1:
            raise ConfigError(f"smoothing is {self.smoothing}; a share is from 0 to below 1")


def check_same_rules(rules: Rules, schedule: Schedule, state: Mapping[str, Any]) -> None:
    """Raise ConfigError if a state says that it is of other rules or of another seed."""
    own = {**asdict(rules), "seed": schedule.seed}
    saved = {**state.get("rules", {}), "seed": state.get("seed", schedule.seed)}
    differences = [
        f"{name} {value}, not {own[name]}"
        for name, value in sorted(saved.items())
        if name in own and _without_tuples(value) != _without_tuples(own[name])
    ]
    if differences:
        raise ConfigError(
            f"the state has {', '.join(differences)}; make this averager with what the state has, or remove "
            '"rules" and "seed" from the state'
        )


def _without_tuples(value: object) -> object:
    """Return a value as it is after JSON."""
    return list(value) if isinstance(value, tuple) else value
