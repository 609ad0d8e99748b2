"""One call of a function on rows: its inputs are joined, its outputs cut, and all that it did is returned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import FlowError
from ..declare.calls import MFCDef
from ..declare.ranks import role_at
from ..link.columns import Columns
from ..link.results import Result
from ..link.tasks import MainTask
from ..master.rows.tags import checked_tags
from ..store.values import Value, cut, digest_of, n_bytes_of, n_not_finite
from .batch import Rows
from .devices import device_work, wait_for_devices
from .objects import Objects, numbers_of

__all__ = ["call_function"]


def call_function(
    call: MFCDef,
    objects: Objects,
    task: MainTask,
    values: Mapping[str, Sequence[Value]],
    keep: Callable[[Sequence[int], Mapping[str, Sequence[Value]]], Columns],
    *,
    worker: int,
    group: int,
    digests: bool,
) -> Result:
    """Call a function on rows; returns what it did: nothing if another worker of the role reports it.

    What it has submitted to devices is done then, in whatever stream: its outputs can be read, its weights be shown.

    Args:
        call: Function that is called.
        objects: Objects of the roles of this process.
        task: Rows of the call, at least one.
        values: Values of each input, as many as ids.
        keep: Function that keeps outputs of rows; returns their places.
        worker: Number of this worker.
        group: Number of rows of a group, which stay together.
        digests: Whether a digest of ids and inputs is taken.

    Raises:
        FlowError: it returned something that is no output, or a tag is none; see `checked_tags`.
        Exception: what the function raised.
    """
    ids, rows = task.own_ids, _rows(call, task, values, group)
    n_rows, digest, counts = len(ids), "", dict[str, int]()
    reports = task.part is None or (task.part.is_head and n_rows > 0)
    if digests and reports:
        digest = digest_of(
            (f"{row_id} {key}", values[key][i]) for i, row_id in enumerate(ids) for key in call.input_keys
        )
    if call.trains and reports:
        # Before the function may change them.
        counts = {key: n_not_finite(values[key][:n_rows]) for key in call.input_keys}
    function: Any = call.interface_impl
    if call.model_name is not None:
        function = getattr(objects[role_at(call.model_name, worker)], str(call.interface_impl))
    with device_work():
        returned = function(rows)
    if not reports:
        return Result(task.ticket)
    outputs, numbers = _outputs(call, rows, n_rows, returned)
    tags = {row_id: checked_tags(row_id, own) for row_id, own in zip(ids, task.tags, strict=True) if own}
    return Result(
        task.ticket,
        ids=ids,
        columns=keep(ids, outputs),
        n_bytes=sum(n_bytes_of(value) for column in outputs.values() for value in column),
        numbers=numbers,
        dropped=rows.dropped,
        failed=rows.failed,
        tags=tags,
        digest=digest,
        not_finite={key: n for key, n in counts.items() if n},
    )


def _rows(call: MFCDef, task: MainTask, values: Mapping[str, Sequence[Value]], group: int) -> Rows:
    n_rows, part = len(task.ids), task.part
    n_padded = n_rows
    if part is not None:
        n_padded = max(part.n_rows, n_rows)
    elif call.uneven == "pad" and call.least == call.n_seqs:
        n_padded = max(call.n_seqs, n_rows)
    places = [i % n_rows for i in range(n_padded)]
    names = [call.input_key_remap.get(key, key) for key in call.input_keys]
    return Rows(
        {name: [values[key][i] for i in places] for name, key in zip(names, call.input_keys, strict=True)},
        [task.ids[i] for i in places],
        group=group,
        n_padding=n_padded - len(task.own_ids),
        step=task.step,
        use=task.use,
        ends_step=task.ends_step,
        age=task.age,
        # What is written to those of padding is no data.
        tags=[
            task.tags[i] if place < len(task.own_ids) else dict(task.tags[i])
            for place, i in enumerate(places)
        ],
        weight=1.0 if part is None else part.n_real * part.n_ranks / part.n_all,
        longest=None if part is None else dict(zip(names, part.longest, strict=True)),
    )


def _outputs(
    call: MFCDef, rows: Rows, n_rows: int, result: Any
) -> tuple[dict[str, list[Value]], dict[str, float]]:
    """Return the outputs of a function by column, and the numbers beside them."""
    named = result if isinstance(result, dict) else {}
    inside = {call.output_key_remap.get(key, key): key for key in named}
    missing = [column for column in call.output_keys if column not in inside]
    if missing:
        have = ", ".join(sorted(map(str, named))) if named else f"a {type(result).__name__}"
        raise FlowError(f"it did not return {', '.join(missing)}; it returned {have}")
    # What is behind the rows is padding.
    columns = {
        column: cut(column, named[inside[column]], rows.n_rows)[:n_rows] for column in call.output_keys
    }
    wait_for_devices()  # for the copies; a later function may use another stream
    others = {
        key: value
        for key, value in named.items()
        if call.output_key_remap.get(key, key) not in call.output_keys
    }
    return columns, numbers_of("it", others if isinstance(result, dict) else result)
