"""How the pushes of a round become one: their mean, or a mean without the extreme ones."""

from __future__ import annotations

from typing import Literal

from ...errors import ConfigError

__all__ = ["Aggregate", "check", "trim_of"]

Aggregate = Literal["mean", "median", "trimmed"]


def check(aggregate: Aggregate, trim: int, mode: str, needed: int) -> None:
    """Refuse an aggregate that would protect from nothing.

    Args:
        aggregate: of the run.
        trim: values that `trimmed` leaves out on each side.
        mode: of the run.
        needed: pushes that a round needs.

    Raises:
        ConfigError: it is unknown, the run has no rounds, or its rounds have too few pushes.
    """
    if aggregate not in ("mean", "median", "trimmed"):
        raise ConfigError(f'aggregate of the run is "{aggregate}"; need mean, median or trimmed')
    if aggregate == "mean":
        return
    if mode != "bsp":
        raise ConfigError(f"the aggregate {aggregate} needs rounds, and the mode is {mode}; use the mode bsp")
    least = 3 if aggregate == "median" else 2 * trim + 1
    if trim < 1 or needed < least:
        raise ConfigError(
            f"the aggregate {aggregate} with trim {trim} needs trim 1 or more, and {least} pushes in a round; the quorum "
            f"is {needed}: raise the quorum"
        )


def trim_of(aggregate: Aggregate, trim: int, n: int) -> int | None:
    """Return how many of n values of an element are left out on each side; None for a mean weighted by samples.

    The median is the mean of the one or two values in the middle. A round at the end of the data may have so few pushes
    that fewer are left out.

    Source: coordinate-wise median and trimmed mean, Yin et al., Byzantine-Robust Distributed Learning, ICML 2018.
    """
    if aggregate == "mean":
        return None
    most = (n - 1) // 2
    return most if aggregate == "median" else min(trim, most)
