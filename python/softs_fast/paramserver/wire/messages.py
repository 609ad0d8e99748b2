"""The JSON bodies of requests and answers, and their bytes."""

from __future__ import annotations

import functools
import re
from typing import Annotated, Any, Literal, TypeVar

from ...records import NO_NUL, Amount, Count, Finite, Json, Record, most, shaped, span
from .invite import JOB_BYTES, SECRET_BYTES
from .limits import (
    FIRST_PART_BYTES,
    MAX_ELEMENTS,
    MAX_ITEMS,
    MAX_JSON_BYTES,
    MAX_LEASE,
    MAX_MANIFEST_BYTES,
    MAX_PART_BYTES,
    MAX_STATUS_BYTES,
    MAX_TEXT,
    MAX_WAIT_S,
    MIN_PART_BYTES,
)
from .signing import NONCE_BYTES, WORKER_ID

__all__ = [
    "MAX_REASON",
    "Admission",
    "CodecName",
    "Control",
    "Counted",
    "DataRange",
    "DataRequest",
    "Failure",
    "Heartbeat",
    "JoinAnswer",
    "JoinRequest",
    "Leave",
    "MemberState",
    "MemberStatus",
    "Mode",
    "RunConfig",
    "RunState",
    "Stale",
    "Status",
    "Summary",
    "UploadState",
    "decode",
    "encode",
    "nonce_of",
]

_Record = TypeVar("_Record", bound=Record)

_MAX_WORLD = 4096
_MAX_NAME = 128
#: Characters of the reason of a worker that leaves.
MAX_REASON = 180
#: Quotes within a text of JSON have a backslash, so this is a key and its value.
_NONCE = re.compile(rb'"nonce":"([0-9a-f]{32})"')

_NONCE_PATTERN = f"[0-9a-f]{{{2 * NONCE_BYTES}}}"
_Nonce = Annotated[str, most(2 * NONCE_BYTES), shaped(_NONCE_PATTERN)]
_Text = Annotated[str, most(MAX_TEXT), NO_NUL]
_Short = Annotated[str, most(64), NO_NUL]

CodecName = Literal["f32", "bf16", "int8", "top_k"]
Mode = Literal["bsp", "ssp", "async"]
MemberState = Literal["joining", "active", "paused", "stalled"]
RunState = Literal["waiting", "open", "grace", "apply", "paused", "done"]


class Admission(Record):
    """What an invite has, for a worker that has none: its certificate is of the token of the job.

    Attributes:
        job: Bytes of the invite that name the job, in hexadecimal digits.
        secret: Secret of the invite, in hexadecimal digits.
    """

    job: Annotated[str, most(2 * JOB_BYTES), shaped(f"[0-9a-f]{{{2 * JOB_BYTES}}}")]
    secret: Annotated[str, most(2 * SECRET_BYTES), shaped(f"[0-9a-f]{{{2 * SECRET_BYTES}}}")]


class JoinRequest(Record):
    """POST /v1/join.

    Attributes:
        name: Name of the machine, for people.
        protocols: Protocols that the worker knows.
        manifest: Canonical JSON of its model, so that the server can name the first difference.
        nonce: 16 random bytes as hex, new for each join.
        old_id: Id of the worker before it was disconnected; "" for a new one.
        instance: 16 random bytes as hex, the same for all joins of one process: a join of which the answer was lost is
            known by it, so that no rank is left to a worker that never was; "" if it is not known.
    """

    name: Annotated[str, most(_MAX_NAME), NO_NUL]
    protocols: Annotated[tuple[Count, ...], most(16)]
    manifest: Annotated[str, most(MAX_MANIFEST_BYTES), NO_NUL]
    nonce: _Nonce
    old_id: Annotated[str, most(64), shaped(f"|{WORKER_ID.pattern}")] = ""
    instance: Annotated[str, most(2 * NONCE_BYTES), shaped(f"|{_NONCE_PATTERN}")] = ""


def nonce_of(body: bytes) -> bytes:
    """Return the nonce of a join that is not parsed yet; b"" if there is none."""
    found = _NONCE.search(body)
    return b"" if found is None else bytes.fromhex(found[1].decode())


class RunConfig(Record):
    """What the server tells each worker, so that nothing is typed twice.

    Attributes:
        rounds: Version at which the run ends.
        batch_size: Samples of one optimizer step of a worker.
        mode: Mode of the run: "bsp", "ssp" or "async".
        local_steps: Optimizer steps of a worker for one push; 0: gradients are pushed, and the server alone steps.
        push_codec: Codec of pushes.
        top_k_fraction: Fraction of elements that the codec top_k keeps.
        compression: Whether pushes are split into byte planes and compressed.
        pull_codec: Codec of weights: "f32" or "bf16"; XOR is taken for f32 while the server holds the base.
        data: Source of the samples: "rank": samples rank, rank + world_size, ...; "leases": ranges that the server hands
            out.
        dataset_size: Samples of the data set; 0 if the worker knows.
        seed: Seed of the order of samples.
        clip_norm: Greatest norm of a push; 0 for any.
        lost_after_s: Seconds of silence after which a worker has left.
        first_part_bytes: Bytes of the first part of an upload; the worker then measures.
        max_part_bytes: Bytes of a part that the server accepts, at most.
        max_wait_s: Seconds for which a request for weights is held, at most.
        buffer_sync: Whether pushes have buffers.
    """

    rounds: Count
    batch_size: Annotated[int, span(1, 1 << 31)]
    mode: Mode = "bsp"
    local_steps: Annotated[int, span(0, 1 << 31)] = 0
    push_codec: CodecName = "bf16"
    top_k_fraction: Annotated[float, span(1e-9, 1.0)] = 0.01
    compression: bool = True
    pull_codec: Literal["f32", "bf16"] = "f32"
    data: Literal["rank", "leases"] = "rank"
    dataset_size: Annotated[int, span(0, MAX_ELEMENTS)] = 0
    seed: Count = 0
    clip_norm: Amount = 0.0
    lost_after_s: Annotated[float, span(0.05, 86_400.0)] = 20.0
    first_part_bytes: Annotated[int, span(1, MAX_PART_BYTES)] = FIRST_PART_BYTES
    max_part_bytes: Annotated[int, span(MIN_PART_BYTES, MAX_PART_BYTES)] = MAX_PART_BYTES
    max_wait_s: Annotated[float, span(0.0, MAX_WAIT_S)] = 25.0
    buffer_sync: bool = True


class JoinAnswer(Record):
    """200 to a join.

    Attributes:
        worker_id: Id of the worker, for all requests from here on.
        rank: 0 to world_size - 1; a worker that joins beyond the world has a rank above it.
        world_size: Workers that the run was made for.
        config: Configuration of the run.
        nonce: 16 random bytes of the server as hex.
        timeline: T of its weights.
        version: V of its weights.
    """

    worker_id: Annotated[str, most(64), shaped(WORKER_ID.pattern)]
    rank: Annotated[int, span(0, _MAX_WORLD)]
    world_size: Annotated[int, span(1, _MAX_WORLD)]
    config: RunConfig
    nonce: _Nonce
    timeline: Count
    version: Count


class UploadState(Record):
    """201 and 202 of a push, 416: where the next part begins.

    Attributes:
        next_offset: Bytes of the payload that the server has; the header of the frame does not count.
        max_part_bytes: Bytes of a part, at most.
    """

    next_offset: Count
    max_part_bytes: Annotated[int, span(1, MAX_PART_BYTES)] = MAX_PART_BYTES


class Counted(Record):
    """200 of a push.

    Attributes:
        have: Pushes that the open round has.
        need: Pushes that the round closes with.
        again: Whether the push had been counted before.
    """

    have: Count
    need: Count
    again: bool = False


class Stale(Record):
    """409 of a push: its weights are not those of the open round.

    Attributes:
        timeline: T of the weights to fetch.
        version: V of them.
        code: Short name of the error: "stale".
        message: Reason, as text for people.
        remedy: Next action of the worker.
    """

    timeline: Count
    version: Count
    code: _Text = "stale"
    message: _Text = "the push is of weights that the open round does not take"
    remedy: _Text = "fetch the weights and compute the gradient again"


class Failure(Record):
    """Any other error.

    Attributes:
        code: Short name that stays the same, such as "other-manifest"; `answers.Code`.
        message: Description of what failed, on what, with numbers.
        remedy: Advice on what to do.
    """

    code: _Short
    message: _Text
    remedy: _Text = ""


class Heartbeat(Record):
    """POST /v1/heartbeat: the process of the worker lives.

    Attributes:
        progress: Count that rises while the worker trains: requests, parts of bodies, local steps. With the same count as
            in the heartbeat before, the worker may hang; None if the worker does not count.
    """

    progress: Count | None = None


class Leave(Record):
    """POST /v1/leave: the worker asks for nothing more.

    Attributes:
        reason: Type and text of the exception that has ended it; "" for none.
    """

    reason: Annotated[str, most(MAX_REASON), NO_NUL] = ""


class DataRequest(Record):
    """POST /v1/data: the worker wants samples for its next push.

    Attributes:
        n: Samples wanted.
        number: Number of the lease. The same one again gets the same samples; a later lease has a greater number, and
            the one before is given back. The header of the push names it.
    """

    n: Annotated[int, span(1, MAX_ELEMENTS)]
    number: Annotated[int, span(1, MAX_LEASE)]


class DataRange(Record):
    """200 of /v1/data. All ranges of a lease are done when the push that names it is counted.

    Attributes:
        epoch: Epoch of the data.
        seed: Seed of the run; `permutation.order(seed, epoch, n)` says which samples they are.
        ranges: Pairs (begin, end) of positions in that order.
    """

    epoch: Count
    seed: Count
    ranges: Annotated[tuple[tuple[Count, Count], ...], most(MAX_ITEMS)]


class Summary(Record):
    """410: the run is over.

    Attributes:
        timeline: T of the last weights.
        version: V of them.
        message: Description of how the run ended.
        loss: Mean loss of the last round; None if it is not known.
        metric: Metric of the last evaluation; None without one.
        code: Short name of the error: "over".
    """

    timeline: Count
    version: Count
    message: _Text = ""
    loss: Finite | None = None
    metric: Finite | None = None
    code: _Text = "over"


class MemberStatus(Record):
    """One worker, in a status.

    Attributes:
        worker_id: Id of the worker.
        name: Name of its machine.
        rank: Rank of the worker.
        state: State of the worker: "joining" until its first request after the join, "active", "paused", or "stalled"
            (it is alive and makes no progress).
        counted: Pushes that were counted.
        stale: Pushes that were refused as stale.
        silent_s: Seconds since its last request.
        uploaded_bytes: Bytes of the upload under way that have arrived.
        upload_bytes: Bytes of this upload in all.
        loss: Loss of its last push.
    """

    worker_id: _Text
    name: _Text
    rank: Count
    state: MemberState
    counted: Count = 0
    stale: Count = 0
    silent_s: Finite = 0.0
    uploaded_bytes: Count = 0
    upload_bytes: Count = 0
    loss: Finite | None = None


class Status(Record):
    """200 of /v1/status.

    Attributes:
        serial: Number that rises with each change; `since` of the next request.
        state: State of the run.
        timeline: T of the weights.
        version: V of the weights.
        rounds: Version at which the run ends.
        world_size: Workers that the run was made for.
        have: Pushes of the open round.
        need: Pushes that the open round closes with.
        waiting_for: Description of what the run waits for, since when and for which workers, or of how it has ended.
        samples: Samples that steps have used.
        skipped: Steps that were not finite.
        refused: Pushes that did not count.
        is_failure: Whether the run has ended because something is broken.
        members: Workers that have joined, and have neither left nor been silent for `lost_after_s`.
        loss: Mean loss of the last round.
        metric: Metric of the last evaluation.
        log: Last events, one line each.
        next_control: Counter with which the owner signs the next control.
    """

    serial: Count
    state: RunState
    timeline: Count
    version: Count
    rounds: Count
    world_size: Count
    have: Count
    need: Count
    waiting_for: _Text = ""
    samples: Count = 0
    skipped: Count = 0
    refused: Count = 0
    is_failure: bool = False
    members: Annotated[tuple[MemberStatus, ...], most(MAX_ITEMS)] = ()
    loss: Finite | None = None
    metric: Finite | None = None
    log: Annotated[tuple[_Text, ...], most(MAX_ITEMS)] = ()
    next_control: Count = 0


class Control(Record):
    """POST /v1/control, signed with the owner's key.

    Attributes:
        action: Action of the server.
        worker_id: Id of the worker, for "kick".
    """

    action: Literal["start", "pause", "resume", "kick", "stop"]
    worker_id: _Short = ""


def encode(record: Record) -> bytes:
    """Return a message as JSON.

    Raises:
        WireError: a field breaks its bounds, or there are too many bytes.
    """
    return _format(type(record), MAX_STATUS_BYTES).encode(record)


def decode(kind: type[_Record], data: bytes | bytearray, limit: int = MAX_JSON_BYTES) -> _Record:
    """Return a message from JSON.

    Args:
        kind: Class of the message.
        data: JSON as `encode` writes it.
        limit: Bytes that the JSON may have.

    Raises:
        WireError: they are too many, or no message of this class; the text names the field.
    """
    record: _Record = _format(kind, limit).decode(data)
    return record


@functools.cache
def _format(kind: type[Record], limit: int) -> Json[Any]:
    return Json(kind, most_bytes=limit, what=f"body of a {kind.__name__}")
