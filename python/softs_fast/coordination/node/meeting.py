"""How the members of an epoch wait for each other before they connect."""

from __future__ import annotations

from datetime import timedelta

from torch.distributed import Store

__all__ = ["wait_for_members"]


def wait_for_members(store: Store, size: int, timeout_s: float) -> None:
    """Wait until all members of an epoch have called this; once an epoch.

    Args:
        store: of the epoch.
        size: number of members.
        timeout_s: how long to wait.

    Raises:
        PeerLost: the epoch is over, or not all have come in time.
    """
    if store.add("members that are here", 1) == size:
        store.set("all are here", "")
    store.wait(["all are here"], timedelta(seconds=timeout_s))
