"""Layouts of weights that both ends of a connection know, so that they are sent once and not with each message."""

from __future__ import annotations

from ..weights.shown import ShownLayout

__all__ = ["KnownLayouts"]

#: Of one connection, one way.
_MOST_LAYOUTS = 16


class KnownLayouts:
    """What was sent on a connection one way: the sender and the receiver each have one of these, and note the same.

    A connection keeps its order, so both have the same layouts when they come to a message. It is not of a process but
    of a connection: one that is started again is sent everything again.
    """

    def __init__(self) -> None:
        self._layouts: dict[bytes, ShownLayout] = {}

    def __contains__(self, layout: ShownLayout) -> bool:
        return layout.digest in self._layouts

    def get(self, digest: bytes) -> ShownLayout | None:
        """Return the layout of a digest; None if it is not known."""
        return self._layouts.get(digest)

    def note(self, layout: ShownLayout) -> None:
        """A layout was in a message; the one that was sent first is dropped if there are too many."""
        if layout.digest in self._layouts:
            return
        while len(self._layouts) >= _MOST_LAYOUTS:
            del self._layouts[next(iter(self._layouts))]
        self._layouts[layout.digest] = layout
