"""What workers show of weights in messages; layouts that both ends of a connection know are sent once."""

from __future__ import annotations

from typing import Any

from ...errors import WireError
from ..moves.places import ITEM_BYTES, MAX_BYTES
from ..weights.boxes import Box
from ..weights.shown import Shown, ShownLayout, ShownRegion
from .checks import integer, listing, places, text, with_segments

__all__ = ["KnownLayouts", "checked_shown", "shown_as_wire", "with_layout"]

#: Of one connection, one way.
_MOST_LAYOUTS = 16

_NAME = text(1 << 10)
_SIZES = listing(integer(0, MAX_BYTES - 1), 64)


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


def shown_as_wire(shown: Shown, known: KnownLayouts | None) -> list[object]:
    """Return plain types; of a layout that is known to the other end, its digest."""
    layout = shown.layout
    is_known = known is not None and layout in known
    return [shown.role, layout.digest if is_known else layout.as_wire(), with_segments(((shown.place,),))]


def with_layout(value: Any, known: KnownLayouts | None) -> Any:
    """Return what `shown_as_wire` made with its layout, if there is the digest of one.

    Raises:
        WireError: it was not sent.
    """
    if type(value) is not list or len(value) != 3 or type(value[1]) is not bytes:
        return value
    role, digest, place = value
    layout = known.get(digest) if known is not None else None
    if layout is None:
        raise WireError(f"State: shown has layout {digest.hex()[:64]}, which was not sent on this connection")
    return [role, layout, place]


def checked_shown(name: str, value: Any) -> Shown:
    """Return what a worker shows, of what `with_layout` returned.

    Raises:
        WireError: a field is missing or impossible.
    """
    if type(value) is not list or len(value) != 3:
        raise WireError(f"{name} is {repr(value)[:60]}; need role, regions and their place")
    role, layout, place = value
    found = places(name, place)
    if [len(column) for column in found] != [1]:
        raise WireError(f"{name} has places of {len(found)} values; need one")
    if not isinstance(layout, ShownLayout):
        layout = ShownLayout(listing(_region, 1 << 16)(name, layout))
    return Shown(integer(0, 1 << 16)(name, role), layout, found[0][0])


def _region(name: str, value: Any) -> ShownRegion:
    if type(value) is not list or len(value) != 5:
        raise WireError(f"{name} has {repr(value)[:60]}; need name, shape, start, size and dtype of a region")
    tensor, shape, start, size, dtype = value
    if type(dtype) is not str or dtype not in ITEM_BYTES:
        raise WireError(f"{name} has dtype {repr(dtype)[:60]}; need one of {', '.join(ITEM_BYTES)}")
    box = Box(_SIZES(name, start), _SIZES(name, size))
    return ShownRegion(_NAME(name, tensor), _SIZES(name, shape), box, dtype)
