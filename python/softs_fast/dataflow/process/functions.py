"""One call of a function on rows: its inputs are joined, its outputs cut, and all that it did is returned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import FlowError
from ...user_code import reason_of_error, text_of_error, trace_of_error
from ..declare.calls import MFCDef
from ..declare.ranks import role_at
from ..link.forms import Slice
from ..master.rows.records import Tag
from ..master.rows.tags import checked_tags
from ..store.values import Value, cut, digest_of, n_not_finite
from .batch import Rows
from .devices import device_work, wait_for_devices
from .objects import Objects, numbers_of

__all__ = ["Batch", "Failure", "Outcome", "call_function"]


@dataclass(frozen=True)
class Batch:
    """Rows of a call, and what a function is told of them; see `Rows` for the rest.

    Attributes:
        ids: Ids of the rows.
        columns: Values of each input of the function, as many as ids.
        tags: Tags of each row.
        part: Part of the call for this worker, which says how many of the rows are data here; None: all of them.
    """

    ids: tuple[int, ...]
    columns: Mapping[str, Sequence[Value]]
    tags: Sequence[dict[str, Tag]]
    step: int
    use: int
    ends_step: bool
    age: int
    part: Slice | None = None

    @property
    def own_ids(self) -> tuple[int, ...]:
        """Ids of the rows that are data here."""
        return self.ids if self.part is None else self.ids[: self.part.n_real]


@dataclass(frozen=True)
class Failure:
    """Why a step failed.

    Attributes:
        reason: the exception's text, or its type.
        text: type, text and traceback.
        cause: the exception, where it was raised in this process.
    """

    reason: str
    text: str
    cause: BaseException | None = field(default=None, compare=False)

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Return what is said of an exception; at most 100,000 characters."""
        return cls(reason_of_error(error), f"{text_of_error(error)}\n{trace_of_error(error)}", error)


@dataclass
class Outcome:
    """What a worker's part in a step has done.

    Attributes:
        seconds: Seconds that the part took.
        numbers: Numbers that a function returned beside columns, or that an evaluation returned.
        ids: Ids of the rows on which a function was called.
        columns: Values of each output of the function, or their places, for each of these rows.
        dropped: Reasons why rows were dropped, by id.
        failed: Reasons why rows could not be made, by id.
        tags: Tags of rows that have some, by id.
        digest: Digest of ids and inputs; empty if none is taken.
        failure: Failure of the part; None if it is done.
        unread: Whether it failed because inputs could not be read, before the function was entered.
        not_finite: Number of rows with a NaN or an infinity among the inputs of a training function, by column.
        began_s: Time at which it began, by `time.monotonic` of its process; 0 if it did not.
        read_s: Seconds that the reading of the inputs took, before `seconds`; they are read first.
    """

    seconds: float = 0.0
    numbers: dict[str, float] = field(default_factory=dict)
    ids: tuple[int, ...] = ()
    columns: dict[str, list[Any]] = field(default_factory=dict)
    dropped: dict[int, str] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    tags: dict[int, dict[str, Tag]] = field(default_factory=dict)
    digest: str = ""
    failure: Failure | None = None
    unread: bool = False
    began_s: float = 0.0
    read_s: float = 0.0
    not_finite: dict[str, int] = field(default_factory=dict)


def call_function(
    call: MFCDef, objects: Objects, batch: Batch, *, worker: int, group: int, digests: bool
) -> Outcome:
    """Call a function on rows; returns what it did: nothing if another worker of the role reports it.

    What it has submitted to devices is done then, in whatever stream: its outputs can be read, its weights be shown.

    Args:
        call: Function that is called.
        objects: Objects of the roles of this process.
        batch: Rows of the call, at least one.
        group: Number of rows of a group, which stay together.
        digests: Whether a digest of ids and inputs is taken.

    Raises:
        FlowError: it returned something that is no output, or a tag is none; see `checked_tags`.
        Exception: what the function raised.
    """
    own_ids, rows = batch.own_ids, _rows(call, batch, group)
    n_rows, outcome = len(own_ids), Outcome(ids=own_ids)
    reports = batch.part is None or (batch.part.is_head and n_rows > 0)
    if digests and reports:
        outcome.digest = digest_of(
            (f"{row_id} {key}", batch.columns[key][i])
            for i, row_id in enumerate(own_ids)
            for key in call.input_keys
        )
    if call.trains and reports:
        # Before the function may change them.
        counts = {key: n_not_finite(batch.columns[key][:n_rows]) for key in call.input_keys}
        outcome.not_finite = {key: n for key, n in counts.items() if n}
    function: Any = call.interface_impl
    if call.model_name is not None:
        function = getattr(objects[role_at(call.model_name, worker)], str(call.interface_impl))
    with device_work():
        result = function(rows)
    if not reports:
        return Outcome()
    _outputs(call, rows, n_rows, result, outcome)
    outcome.dropped, outcome.failed = rows.dropped, rows.failed
    outcome.tags = {
        row_id: checked_tags(row_id, tags) for row_id, tags in zip(own_ids, batch.tags, strict=True) if tags
    }
    return outcome


def _rows(call: MFCDef, batch: Batch, group: int) -> Rows:
    n_rows, part = len(batch.ids), batch.part
    n_padded = n_rows
    if part is not None:
        n_padded = max(part.n_rows, n_rows)
    elif call.uneven == "pad" and call.least == call.n_seqs:
        n_padded = max(call.n_seqs, n_rows)
    places = [i % n_rows for i in range(n_padded)]
    names = [call.input_key_remap.get(key, key) for key in call.input_keys]
    return Rows(
        {
            name: [batch.columns[key][i] for i in places]
            for name, key in zip(names, call.input_keys, strict=True)
        },
        [batch.ids[i] for i in places],
        group=group,
        n_padding=n_padded - len(batch.own_ids),
        step=batch.step,
        use=batch.use,
        ends_step=batch.ends_step,
        age=batch.age,
        # What is written to those of padding is no data.
        tags=[
            batch.tags[i] if place < len(batch.own_ids) else dict(batch.tags[i])
            for place, i in enumerate(places)
        ],
        weight=1.0 if part is None else part.n_real * part.n_ranks / part.n_all,
        longest=None if part is None else dict(zip(names, part.longest, strict=True)),
    )


def _outputs(call: MFCDef, rows: Rows, n_rows: int, result: Any, outcome: Outcome) -> None:
    named = result if isinstance(result, dict) else {}
    inside = {call.output_key_remap.get(key, key): key for key in named}
    missing = [column for column in call.output_keys if column not in inside]
    if missing:
        have = ", ".join(sorted(map(str, named))) if named else f"a {type(result).__name__}"
        raise FlowError(f"it did not return {', '.join(missing)}; it returned {have}")
    for column in call.output_keys:
        # What is behind the rows is padding.
        outcome.columns[column] = cut(column, named[inside[column]], rows.n_rows)[:n_rows]
    wait_for_devices()  # for the copies; a later function may use another stream
    others = {
        key: value
        for key, value in named.items()
        if call.output_key_remap.get(key, key) not in call.output_keys
    }
    outcome.numbers = numbers_of("it", others if isinstance(result, dict) else result)
