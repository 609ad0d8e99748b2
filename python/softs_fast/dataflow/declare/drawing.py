"""A picture of a flow: its functions by depth, which of them read what others make, and where weights go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

from .calls import MFCDef
from .hooks import transfers

__all__ = ["drawing"]

_BOX_WIDTH, _BOX_HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 230, 78, 110, 34, 20
#: Letters of a line in a box.
_MOST_LETTERS = 34
_STYLE = """
text { font: 11px system-ui, sans-serif; fill: #444; } .name { font-weight: 600; font-size: 13px; fill: #222; }
.of { fill: #555; }
rect { fill: #f4f6f9; stroke: #789; } .trains { fill: #e6f2e6; stroke: #484; } .source { fill: #fff; stroke-dasharray: 4 3; }
path { fill: none; stroke: #06c; stroke-opacity: .7; } .weights { stroke: #484; stroke-dasharray: 5 4; }
.background { fill: #fff; stroke: none; }
"""


def drawing(order: Sequence[MFCDef], read: Mapping[str, Sequence[str]]) -> str:
    """Return a flow as SVG: an arrow from a function to each one that reads its columns, a dashed one for weights.

    Letters that do not fit into a box, and the columns of an arrow, show where the pointer rests.

    Args:
        order: Functions, each after those that it reads from.
        read: Columns that are read of the source, by partition.
    """
    makers = {(one.partition, key): one.name for one in order for key in one.output_keys}
    columns: dict[tuple[str, str], list[str]] = {}
    depth = {_source(partition): 0 for partition in read}
    for one in order:
        for key in one.input_keys:
            maker = makers.get((one.partition, key), _source(one.partition))
            columns.setdefault((maker, one.name), []).append(key)
            depth[one.name] = max(depth.get(one.name, 0), depth[maker] + 1)
    places = _placed(depth)
    width = max(x for x, _ in places.values()) + _BOX_WIDTH + _MARGIN
    # Weights go back below the boxes.
    height = max(y for _, y in places.values()) + _BOX_HEIGHT + _MARGIN + _GAP_Y
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<style>{_STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0,0 L8,4 L0,8" style="stroke: #555; stroke-opacity: 1"/></marker></defs>',
        f'<rect class="background" width="{width}" height="{height}"/>',
    ]
    for (maker, reader), keys in columns.items():
        makers_here = sorted((one for one, other in columns if other == reader), key=places.__getitem__)
        readers_here = sorted((other for one, other in columns if one == maker), key=places.__getitem__)
        start = places[maker][0] + _BOX_WIDTH, _port(places[maker][1], readers_here, reader)
        end = places[reader][0], _port(places[reader][1], makers_here, maker)
        parts.append(_arrow(start, end, ", ".join(keys)))
    parts += [_weights(places[a], places[b], height) for a, b in _published(order)]
    parts += [
        _box(places[_source(name)], _source(name), [f"→ {', '.join(keys)}"], "source")
        for name, keys in read.items()
    ]
    parts += [
        _box(
            places[one.name],
            one.name,
            [_where(one), _rows(one), _columns(one)],
            "trains" if one.trains else "",
        )
        for one in order
    ]
    return "\n".join([*parts, "</svg>\n"])


def _port(top: int, others: Sequence[str], one: str) -> int:
    """Return where on the side of a box the arrow of one of several others is."""
    return top + (2 * others.index(one) + 1) * _BOX_HEIGHT // (2 * len(others))


def _source(partition: str) -> str:
    """Return the name of a box that no function has: theirs are words."""
    return f"source ({partition})"


def _placed(depth: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return the left upper corner of each box: by its depth, and below those that came before."""
    n_before = dict.fromkeys(depth.values(), 0)
    places = {}
    for name, column in depth.items():
        places[name] = (
            _MARGIN + column * (_BOX_WIDTH + _GAP_X),
            _MARGIN + n_before[column] * (_BOX_HEIGHT + _GAP_Y),
        )
        n_before[column] += 1
    return places


def _published(order: Sequence[MFCDef]) -> list[tuple[str, str]]:
    """Return the functions between which hooks move weights: the one with the hook, and those of the role that gets them."""
    found: dict[tuple[str, str], None] = {}
    for one in order:
        for hook in (*one.pre_hooks, *one.post_hooks):
            for _, target in transfers(hook, one.model_name):
                readers = [
                    other.name
                    for other in order
                    if other.model_name is not None
                    and target in (other.model_name, *other.model_name.replicas)
                ]
                found.update(dict.fromkeys((one.name, name) for name in readers if name != one.name))
    return list(found)


def _where(call: MFCDef) -> str:
    role = call.model_name
    if role is None:
        return "in the process of the flow"
    kind = "pool" if role.replicas else str(role.layout)
    return f"{role.name}: {kind} on {', '.join(map(str, role.on))}"


def _rows(call: MFCDef) -> str:
    least = "" if call.least == call.n_seqs else f"{call.least} to "
    return f"{least}{call.n_seqs} rows" + (f", {call.reuse} times" if call.reuse > 1 else "")


def _columns(call: MFCDef) -> str:
    made = f" → {', '.join(call.output_keys)}" if call.output_keys else ""
    return ", ".join(call.input_keys) + made


def _box(place: tuple[int, int], name: str, lines: Sequence[str], kind: str) -> str:
    x, y = place
    box = f'<rect class="{kind}" x="{x}" y="{y}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="6"/>'
    texts = [f'<text class="name" x="{x + 10}" y="{y + 20}">{_cut(name)}</text>']
    texts += [
        f'<text x="{x + 10}" y="{y + 37 + 15 * number}">{_cut(line)}<title>{escape(line)}</title></text>'
        for number, line in enumerate(lines)
        if line
    ]
    return "\n".join([box, *texts])


def _arrow(start: tuple[int, int], end: tuple[int, int], columns: str) -> str:
    (x, y), (to_x, to_y), bend = start, end, _GAP_X // 2
    path = f"M{x},{y} C{x + bend},{y} {to_x - bend},{to_y} {to_x},{to_y}"
    return f'<path d="{path}" marker-end="url(#head)"><title>{escape(columns)}</title></path>'


def _weights(start: tuple[int, int], end: tuple[int, int], height: int) -> str:
    x, y = start[0] + _BOX_WIDTH // 2, start[1] + _BOX_HEIGHT
    to_x, to_y = end[0] + _BOX_WIDTH // 2, end[1] + _BOX_HEIGHT
    # A curve goes three quarters of the way to its control points.
    low = y + (height - _MARGIN // 2 - y) * 4 // 3
    path = f"M{x},{y} C{x},{low} {to_x},{low} {to_x},{to_y}"
    return f'<path class="weights" d="{path}" marker-end="url(#head)"><title>weights</title></path>'


def _cut(text: str) -> str:
    return escape(text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 1]}…")
