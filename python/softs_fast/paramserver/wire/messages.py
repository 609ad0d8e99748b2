"""The JSON bodies of requests and answers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from ...errors import WireError
from .limits import (
    FIRST_PART_BYTES,
    MAX_ELEMENTS,
    MAX_LEASE,
    MAX_MANIFEST_BYTES,
    MAX_PART_BYTES,
    MAX_WAIT_S,
    MIN_PART_BYTES,
)
from .signing import NONCE_BYTES, WORKER_ID

__all__ = [
    "MAX_WHY",
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
    "MemberStatus",
    "RunConfig",
    "Stale",
    "Status",
    "Summary",
    "UploadState",
    "nonce_of",
]

_MAX_WORLD = 4096
_MAX_NAME = 128
#: Characters of the reason of a worker that leaves.
MAX_WHY = 180
_HEX = re.compile(r"[0-9a-f]*")
#: Quotes within a text of JSON have a backslash, so this is a key and its value.
_NONCE = re.compile(rb'"nonce":"([0-9a-f]{32})"')

CodecName = Literal["f32", "bf16", "int8", "top_k"]
Mode = Literal["bsp", "ssp", "async"]
RunState = Literal["waiting", "open", "grace", "apply", "paused", "done"]


@dataclass(frozen=True)
class JoinRequest:
    """POST /v1/join.

    Attributes:
        name: of the machine, for people.
        protocols: that the worker knows.
        manifest: canonical JSON of its model, so that the server can name the first difference.
        nonce: 16 random bytes as hex, new for each join.
        old_id: of the worker before it was disconnected; "" for a new one.
        instance: 16 random bytes as hex, the same for all joins of one process: a join of which the answer was lost is
            known by it, so that no rank is left to a worker that never was; "" if it is not known.
    """

    name: str = field(metadata={"most": _MAX_NAME})
    protocols: tuple[int, ...] = field(metadata={"most_items": 16})
    manifest: str = field(metadata={"most": MAX_MANIFEST_BYTES})
    nonce: str = field(metadata={"most": 2 * NONCE_BYTES})
    old_id: str = field(default="", metadata={"most": 64})
    instance: str = field(default="", metadata={"most": 2 * NONCE_BYTES})

    def __post_init__(self) -> None:
        _check_nonce(self.nonce)
        if self.instance:
            _check_nonce(self.instance)
        if self.old_id and not WORKER_ID.fullmatch(self.old_id):
            raise WireError("old_id is no id of a worker")


def nonce_of(body: bytes) -> bytes:
    """Return the nonce of a join that is not parsed yet; b"" if there is none."""
    found = _NONCE.search(body)
    return b"" if found is None else bytes.fromhex(found[1].decode())


@dataclass(frozen=True)
class RunConfig:
    """What the server tells each worker, so that nothing is typed twice.

    Attributes:
        target: version at which the run is over.
        batch_size: samples of one optimizer step of a worker.
        mode: "bsp", "ssp" or "async".
        local_steps: optimizer steps of a worker for one push; 0: gradients are pushed, and the server alone steps.
        codec: of pushes.
        top_k: fraction of elements that the codec top_k keeps.
        planes: whether pushes are split into byte planes and compressed.
        pull: codec of weights: "f32" or "bf16"; XOR is taken for f32 while the server holds the base.
        data: "rank": samples rank, rank + world, ...; "leases": ranges that the server hands out.
        data_size: samples of the data set; 0 if the worker knows.
        seed: of the order of samples.
        clip_norm: greatest norm of a push; 0 for any.
        lease_s: a worker that is silent for so long has left.
        part_bytes: of the first part of an upload; the worker then measures.
        max_part_bytes: that the server accepts.
        max_wait_s: for which a request for weights is held at most.
        sync_buffers: whether pushes have buffers.
    """

    target: int
    batch_size: int = field(metadata={"least": 1, "most": 1 << 31})
    mode: Mode = "bsp"
    local_steps: int = field(default=0, metadata={"most": 1 << 31})
    codec: CodecName = "bf16"
    top_k: float = field(default=0.01, metadata={"least": 1e-9, "most": 1.0})
    planes: bool = True
    pull: Literal["f32", "bf16"] = "f32"
    data: Literal["rank", "leases"] = "rank"
    data_size: int = field(default=0, metadata={"most": MAX_ELEMENTS})
    seed: int = 0
    clip_norm: float = field(default=0.0, metadata={"least": 0.0})
    lease_s: float = field(default=20.0, metadata={"least": 0.05, "most": 86_400.0})
    part_bytes: int = field(default=FIRST_PART_BYTES, metadata={"least": 1, "most": MAX_PART_BYTES})
    max_part_bytes: int = field(
        default=MAX_PART_BYTES, metadata={"least": MIN_PART_BYTES, "most": MAX_PART_BYTES}
    )
    max_wait_s: float = field(default=25.0, metadata={"least": 0.0, "most": MAX_WAIT_S})
    sync_buffers: bool = True


@dataclass(frozen=True)
class JoinAnswer:
    """200 to a join.

    Attributes:
        worker_id: for all requests from here on.
        rank: 0 to world - 1; a worker that joins beyond the world has a rank above it.
        world: workers that the run was made for.
        config: of the run.
        nonce: 16 random bytes of the server as hex.
        timeline: T of its weights.
        version: V of its weights.
        manifest_digest: of its model as hex.
    """

    worker_id: str = field(metadata={"most": 64})
    rank: int = field(metadata={"most": _MAX_WORLD})
    world: int = field(metadata={"least": 1, "most": _MAX_WORLD})
    config: RunConfig
    nonce: str = field(metadata={"most": 2 * NONCE_BYTES})
    timeline: int
    version: int
    manifest_digest: str = field(metadata={"most": 64})

    def __post_init__(self) -> None:
        _check_nonce(self.nonce)
        if not WORKER_ID.fullmatch(self.worker_id):
            raise WireError("worker_id is no id of a worker")


@dataclass(frozen=True)
class UploadState:
    """201 and 202 of a push, 416: where the next part begins.

    Attributes:
        next_offset: bytes of the payload that the server has; the header of the frame does not count.
        part_bytes: of a part, at most.
    """

    next_offset: int
    part_bytes: int = field(default=MAX_PART_BYTES, metadata={"least": 1, "most": MAX_PART_BYTES})


@dataclass(frozen=True)
class Counted:
    """200 of a push.

    Attributes:
        have: pushes that the open round has.
        need: that it closes with.
        again: whether the push had been counted before.
    """

    have: int
    need: int
    again: bool = False


@dataclass(frozen=True)
class Stale:
    """409 of a push: its weights are not those of the open round.

    Attributes:
        timeline: T of the weights to fetch.
        version: V of them.
        code: "stale".
        message: which, in words.
        remedy: what the worker does.
    """

    timeline: int
    version: int
    code: str = "stale"
    message: str = "the push is of weights that the open round does not take"
    remedy: str = "fetch the weights and compute the gradient again"


@dataclass(frozen=True)
class Failure:
    """Any other error.

    Attributes:
        code: a short name that stays the same, such as "other-manifest"; `answers.Code`.
        message: what failed, on what, with numbers.
        remedy: what to do.
    """

    code: str = field(metadata={"most": 64})
    message: str
    remedy: str = ""


@dataclass(frozen=True)
class Heartbeat:
    """POST /v1/heartbeat: the process of the worker lives.

    Attributes:
        progress: Count that rises while the worker trains: requests, parts of bodies, local steps. With the same count as
            in the heartbeat before, the worker may hang; None if the worker does not count.
    """

    progress: int | None = None


@dataclass(frozen=True)
class Leave:
    """POST /v1/leave: the worker asks for nothing more.

    Attributes:
        why: Type and text of the exception that has ended it; "" for none.
    """

    why: str = field(default="", metadata={"most": MAX_WHY})


@dataclass(frozen=True)
class DataRequest:
    """POST /v1/data: the worker wants samples for its next push.

    Attributes:
        n: samples wanted.
        number: of the lease. The same one again gets the same samples; a later lease has a greater number, and the one
            before is given back. The header of the push names it.
    """

    n: int = field(metadata={"least": 1, "most": MAX_ELEMENTS})
    number: int = field(metadata={"least": 1, "most": MAX_LEASE})


@dataclass(frozen=True)
class DataRange:
    """200 of /v1/data. All ranges of a lease are done when the push that names it is counted.

    Attributes:
        epoch: of the data.
        seed: of the run; `permutation.order(seed, epoch, n)` says which samples they are.
        ranges: (begin, end, step) of positions in that order.
    """

    epoch: int
    seed: int
    ranges: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Summary:
    """410: the run is over.

    Attributes:
        timeline: T of the last weights.
        version: V of them.
        message: how it ended, in words.
        loss: mean of the last round; None if it is not known.
        metric: of the last evaluation; None if there was none.
        code: "over".
    """

    timeline: int
    version: int
    message: str = ""
    loss: float | None = None
    metric: float | None = None
    code: str = "over"


@dataclass(frozen=True)
class MemberStatus:
    """One worker, in a status.

    Attributes:
        worker_id: of it.
        name: of its machine.
        rank: of it.
        state: "joining", "active", "paused", "stalled" (it lives, and makes no progress) or "gone".
        counted: pushes that were counted.
        stale: pushes that were refused as stale.
        silent_s: seconds since its last request.
        uploaded: bytes of the upload under way.
        upload_bytes: that this upload has.
        loss: of its last push.
    """

    worker_id: str
    name: str
    rank: int
    state: str
    counted: int = 0
    stale: int = 0
    silent_s: float = 0.0
    uploaded: int = 0
    upload_bytes: int = 0
    loss: float | None = None


@dataclass(frozen=True)
class Status:
    """200 of /v1/status.

    Attributes:
        serial: rises with each change; `since` of the next request.
        state: of the run.
        timeline: T.
        version: V.
        target: version at which it is over.
        world: workers that the run was made for.
        have: pushes of the open round.
        need: that it closes with.
        waiting_for: in words, with since when and for which workers; "" if for nothing.
        members: all that have joined.
        loss: mean of the last round.
        metric: of the last evaluation.
        log: last events, one line each.
        next_control: Counter with which the owner signs the next control.
    """

    serial: int
    state: RunState
    timeline: int
    version: int
    target: int
    world: int
    have: int
    need: int
    waiting_for: str = ""
    members: tuple[MemberStatus, ...] = ()
    loss: float | None = None
    metric: float | None = None
    log: tuple[str, ...] = ()
    next_control: int = 0


@dataclass(frozen=True)
class Control:
    """POST /v1/control, signed with the owner's key.

    Attributes:
        action: what to do.
        worker_id: for "kick".
    """

    action: Literal["start", "pause", "resume", "kick", "stop"]
    worker_id: str = field(default="", metadata={"most": 64})


def _check_nonce(nonce: str) -> None:
    if len(nonce) != 2 * NONCE_BYTES or not _HEX.fullmatch(nonce):
        raise WireError(f"a nonce is not {NONCE_BYTES} bytes as hexadecimal digits")
