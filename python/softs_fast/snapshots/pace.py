"""When a process publishes its tensors: a decision without clocks, threads or memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import ConfigError

__all__ = ["Pace"]

#: Between the end of a copy and the next one at least this many times the copy's own time passes.
REST = 2.0


@dataclass
class Pace:
    """Decides at each step whether to publish: every so many steps, and when another process asks.

    Between two copies at least twice the time of the last one passes, so that copies take a third of the time at most,
    and readers have the time of several copies before what they read is overwritten.

    Args:
        every: steps from one version to the next; 0 publishes only the first one and what is asked for.

    Raises:
        ConfigError: a negative number of steps.
    """

    every: int = 0
    _last_step: int | None = field(default=None, init=False)
    _began_s: float = field(default=0.0, init=False)
    _not_before_s: float = field(default=float("-inf"), init=False)
    _is_copying: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        """Check the argument."""
        if self.every < 0:
            raise ConfigError(f"publish every {self.every} steps; need 0 or more")

    def is_possible(self, now_s: float) -> bool:
        """Return whether a copy may begin now, if there is a reason for one."""
        return not self._is_copying and now_s >= self._not_before_s

    def is_due(self, step: int) -> bool:
        """Return whether the steps alone are a reason to publish: the first version, or enough steps since the last."""
        return self._last_step is None or (self.every > 0 and step - self._last_step >= self.every)

    def begin(self, step: int, now_s: float) -> None:
        """Note that a copy begins."""
        self._last_step = step
        self._began_s = now_s
        self._is_copying = True

    def end(self, now_s: float) -> None:
        """Note that the copy has ended."""
        self._not_before_s = now_s + REST * (now_s - self._began_s)
        self._is_copying = False
