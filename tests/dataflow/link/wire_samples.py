"""One message of each kind."""

from __future__ import annotations

from softs_fast.dataflow.link import messages
from softs_fast.dataflow.link.messages import Columns
from softs_fast.dataflow.store import Place, SegmentAddress
from softs_fast.dataflow.store.weights.boxes import Box
from softs_fast.dataflow.store.weights.shown import Shown, ShownLayout, ShownRegion

SEGMENT = SegmentAddress(17, 12345, 4026531836, 5, bytes(range(16)), 1 << 20, "", "")
OTHER = SegmentAddress(18, 12346, 4026531836, 5, bytes(16), 1 << 20, "boot", "tcp://*:4711")


def place(number: int, segment: SegmentAddress = SEGMENT) -> Place:
    """A place of a float32 [3]."""
    return Place(2, segment, 64 * number, 12, 99 + number, "tensor", (("float32", (3,)),))


def shown(role: int) -> Shown:
    """Rows 4 to 6 of a float32 [8, 2], and a scalar."""
    regions = (
        ShownRegion("net.weight", (8, 2), Box((4, 0), (3, 2)), "float32"),
        ShownRegion("net.count", (), Box((), ()), "int64"),
    )
    return Shown(role, ShownLayout(regions), Place(2, SEGMENT, 128, 72, 99, "bytes", ()))


#: Of a row that has None.
NONE = Place(2, OTHER, 64, 0, 7, "none", ())

SAMPLES: list[messages.Message] = [
    messages.MainTask(
        7,
        3,
        "actor.train",
        (4, 5),
        Columns.of({"x": (place(0), place(1)), "y": (place(2), place(3, OTHER))}),
        ({"a": 1, "b": "text", "c": 0.5, "d": True}, {}),
        3,
        0,
        True,
        1,
    ),
    messages.MainTask(
        *(7, 3, "actor.train", (4,), Columns.of({"x": (place(0),)}), ({},), 3, 0, True, 1),
        messages.Slice(0, 2, 6, 4, True, (700,)),
    ),
    messages.HookTask(8, 3, 4, None, 0, 2),
    messages.HookTask(9, 4, -1, messages.HookForm("Save", (1,), 1.0, "/some/folder", "", (), ()), -1, 0),
    messages.Abort(8, "worker 1 is lost"),
    messages.State(9, shown(3)),
    messages.State(9, shown(3), place(5, OTHER)),
    messages.Free((1, 2, 1 << 62)),
    messages.End(),
    messages.Result(
        7,
        0.25,
        (4, 5),
        Columns.of({"x": (place(0), place(1))}),
        24,
        {"loss": float("inf"), "n": 3.0},
        {4: "filtered"},
        {5: "no answer …"},
        {4: {"tries": 2}},
        "00ff00ff00ff00ff",
        messages.Failure("it failed", "ValueError: it failed\nTraceback"),
        True,
        12.5,
        0.125,
        {"reward": 3},
    ),
    messages.MoveTask(6, 3, (4, 5), Columns.of({"x": (place(0), NONE)})),
    messages.Ready("boot.4026531836", 1 << 33),
    messages.Declared(("role actor", "function train"), 4711, "[::]"),
    messages.Refused("ConfigError: another flow"),
    messages.ReadElements(3, 1, (4, 5, 1 << 40)),
    messages.ElementsRead(
        3,
        Columns.of({"x": (place(0), place(1)), "y": (place(2), place(3, OTHER))}),
        (24, 1 << 40),
        ({"length": 3}, {}),
        1 << 41,
    ),
    messages.ElementsRead(
        4, Columns.of({"x": ()}), failure=messages.Failure("no such file", "OSError: no such file\nTraceback")
    ),
    messages.Fetched(7, (4, 5), Columns.of({"x": (place(0), place(1))})),
]
