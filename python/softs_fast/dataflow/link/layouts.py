"""What workers show of weights in messages; layouts that both ends of a connection know are sent once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ...errors import WireError
from ...records import Count, Message, most, span
from ..master.rows.records import Name
from ..store.places import Dtype, Place, Size
from ..store.weights.boxes import Box
from ..store.weights.shown import Shown, ShownLayout, ShownRegion
from .columns import Columns

__all__ = ["KnownLayouts", "State", "StateForm"]

#: Of one connection, one way.
_MOST_LAYOUTS = 16

_Sizes = Annotated[tuple[Size, ...], most(64)]


class KnownLayouts(dict[bytes, ShownLayout]):
    """What was sent on a connection one way, by digest: the sender and the receiver each have one, and note the same.

    A connection keeps its order, so both have the same layouts when they come to a message. It is not of a process but
    of a connection: one that is started again is sent everything again.
    """

    def note(self, layout: ShownLayout) -> None:
        """A layout was in a message; the one that was sent first is dropped if there are too many."""
        if layout.digest in self:
            return
        while len(self) >= _MOST_LAYOUTS:
            del self[next(iter(self))]
        self[layout.digest] = layout


@dataclass(frozen=True)
class State:
    """To the master, from inside of a hook: what a worker shows of the weights of a source. It passes that on to the
    workers that are inside of the hook, or get there.

    Attributes:
        ticket: Ticket of the hook.
        shown: Regions of tensors, and where they are.
        near: Place of the regions that is nearer to the worker that gets this; None: no place is.
    """

    ticket: int
    shown: Shown
    near: Place | None = None


class _Region(Message):
    name: Name
    shape: _Sizes
    start: _Sizes
    size: _Sizes
    dtype: Dtype


class _ShownForm(Message):
    role: Annotated[int, span(0, 1 << 16)]
    layout: Annotated[bytes, most(16, least=16)] | Annotated[tuple[_Region, ...], most(1 << 16)]
    place: Columns


class StateForm(Message, tag=4):
    """A `State` on its way: of a layout that is known to the other end, it has the digest."""

    ticket: Count
    shown: _ShownForm
    near: Columns | None

    @classmethod
    def of(cls, state: State, known: KnownLayouts | None) -> StateForm:
        """Return what is sent on a connection."""
        layout, shown, near = state.shown.layout, state.shown, state.near
        regions = tuple(
            _Region(one.name, one.shape, one.box.start, one.box.size, one.dtype) for one in layout.regions
        )
        return cls(
            state.ticket,
            _ShownForm(
                shown.role,
                layout.digest if known is not None and layout.digest in known else regions,
                Columns.of({"weights": [shown.place]}).packed(),
            ),
            Columns.of({"weights": [near]}).packed() if near is not None else None,
        )

    def state(self, known: KnownLayouts | None) -> State:
        """Return what has arrived on a connection.

        Raises:
            WireError: its layout was not sent, or its regions and places do not fit together.
        """
        said = self.shown.layout
        if isinstance(said, bytes):
            layout = known.get(said) if known is not None else None
            if layout is None:
                raise WireError(
                    f"State: shown has layout {said.hex()}, which was not sent on this connection"
                )
        else:
            layout = ShownLayout(
                tuple(ShownRegion(one.name, one.shape, Box(one.start, one.size), one.dtype) for one in said)
            )
        shown = Shown(self.shown.role, layout, self.shown.place.one())
        return State(self.ticket, shown, self.near.one() if self.near is not None else None)
