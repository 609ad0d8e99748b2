"""How the members of an epoch wait for each other before they connect."""

from __future__ import annotations

from datetime import timedelta

from torch.distributed import Store

__all__ = ["wait_for_members"]


def wait_for_members(store: Store, size: int, timeout_s: float, what: str = "here") -> None:
    """Wait until all members of an epoch have called this; once an epoch for each `what`.

    Args:
        store: of the epoch.
        size: number of members.
        timeout_s: how long to wait.
        what: they are then, in one word.

    Raises:
        PeerLost: the epoch is over, or not all have come in time.
    """
    if store.add(f"members that are {what}", 1) == size:
        store.set(f"all are {what}", "")
    store.wait([f"all are {what}"], timedelta(seconds=timeout_s))
