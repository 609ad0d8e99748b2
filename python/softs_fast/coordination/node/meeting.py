"""How the members of an epoch wait for each other before they connect."""

from __future__ import annotations

from datetime import timedelta

from torch.distributed import Store

__all__ = ["wait_for_members"]


def wait_for_members(store: Store, size: int, timeout_s: float, what: str = "here") -> None:
    """Wait until all members of an epoch have called this; once an epoch for each `what`.

    Args:
        store: Store of the epoch.
        size: Number of members.
        timeout_s: Seconds to wait.
        what: State that the members have reached then; it names the keys in the store.

    Raises:
        PeerLost: the epoch is over, or not all have come in time.
    """
    if store.add(f"members that are {what}", 1) == size:
        store.set(f"all are {what}", "")
    store.wait([f"all are {what}"], timedelta(seconds=timeout_s))
