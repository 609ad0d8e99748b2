"""A function in several processes at once, one per rank: as `softs-fast gpu` runs them."""

from softs_fast.gpu.ranks import WATCHDOG_S, Raised, Ranks, run, start

__all__ = ["WATCHDOG_S", "Raised", "Ranks", "run", "start"]
