"""How long processes of tests wait for one that does not answer: a loaded machine stops processes for seconds."""

from __future__ import annotations

from softs_fast.coordination.pings import Pings

#: Seconds of silence after which a peer is lost, unless a test means the loss.
LOST_AFTER_S = 60.0


def pings(lost_after_s: float = LOST_AFTER_S) -> Pings:
    """Return pings by which a peer is lost after so many seconds."""
    return Pings(lost_after_s / 2, lost_after_s / 2)
