"""What the machine of a run is told, what it answers, and what it wants done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ..wire.answers import Code
from ..wire.messages import Counted, Stale
from .leases import Range
from .snapshot import Snapshot

__all__ = ["BANNED", "UNKNOWN", "Action", "Answer", "Counted", "Event", "Stale", "Version"]


class Version(NamedTuple):
    """Names weights: versions count the steps of a timeline; a server that starts from a file begins a later timeline."""

    timeline: int
    number: int

    def __str__(self) -> str:
        return f"{self.timeline}.{self.number}"


# --- Events; each one of a worker proves that the worker is alive ---


@dataclass(frozen=True)
class Join:
    """A process wants to be a member.

    Attributes:
        worker_id: New id of the worker.
        name: Name of the worker, for people.
        before: Id that the process had before, or None.
        process: Name of the process, the same for all its attempts to join; "" if it is not known.
    """

    worker_id: str
    name: str
    before: str | None = None
    process: str = ""


@dataclass(frozen=True)
class Seen:
    """A worker has sent something else.

    Attributes:
        worker_id: Id of the worker.
        progress: Count that rises while the worker trains; None if it says none. A heartbeat with the same count as the
            last one proves that the process lives, not that it trains.
    """

    worker_id: str
    progress: int | None = None


@dataclass(frozen=True)
class Pull:
    """A worker wants weights that are newer than what it has.

    Attributes:
        worker_id: Id of the worker.
        have: the weights that it has.
        is_again: the same request is asked once more after `Changed`; that is no proof that the worker is alive.
    """

    worker_id: str
    have: Version | None = None
    is_again: bool = False


@dataclass(frozen=True)
class Offer:
    """A worker asks whether a push would count; nothing of it is counted yet."""

    worker_id: str
    base: Version
    data: int | None = None


@dataclass(frozen=True)
class Push:
    """A worker has pushed all of a valid frame.

    Attributes:
        worker_id: Id of the worker.
        base: Weights that the push was computed with.
        samples: Samples in the push.
        loss: Mean loss of the samples; None if it is not known.
        content: Number under which the frame is kept.
        data: Number of the lease that the push has used; None if the run hands out no samples.
    """

    worker_id: str
    base: Version
    samples: int
    loss: float | None
    content: int
    data: int | None = None


@dataclass(frozen=True)
class Take:
    """A worker wants samples: positions in the permutation of an epoch.

    Attributes:
        worker_id: Id of the worker.
        n: Samples, at most.
        number: Number of the lease; a later one is greater, and the same one again has the same samples.
    """

    worker_id: str
    n: int
    number: int


@dataclass(frozen=True)
class Leave:
    """A worker ends, or it is gone by another proof than silence.

    Attributes:
        worker_id: Id of the worker.
        reason: Reason, for people.
        is_failure: Whether something is broken.
    """

    worker_id: str
    reason: str = "it has left"
    is_failure: bool = False


@dataclass(frozen=True)
class Rest:
    """A worker does nothing until its next pull, push or request for samples, or until it says that it goes on."""

    worker_id: str
    is_over: bool = False


@dataclass(frozen=True)
class Kick:
    """The owner removes a worker for good."""

    worker_id: str
    reason: str


@dataclass(frozen=True)
class Pause:
    """The owner pauses the run: pushes count, nothing is applied, pulls wait."""

    reason: str


@dataclass(frozen=True)
class Resume:
    """The owner ends the pause."""


@dataclass(frozen=True)
class Start:
    """The owner wants the first round to open with the workers that there are."""


@dataclass(frozen=True)
class Stop:
    """The run ends: after the open round, if it has a quorum.

    Attributes:
        reason: Reason, as text for people.
        at_once: Whether the run ends without the open round.
        is_failure: Whether something is broken.
    """

    reason: str
    at_once: bool = False
    is_failure: bool = False


@dataclass(frozen=True)
class Applied:
    """An `Apply` is done, and the weights have their next version.

    Attributes:
        is_finite: False: the weights are as before, because the step had an infinity or a NaN.
    """

    is_finite: bool = True


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


OfWorker = Seen | Pull | Offer | Push | Take | Leave | Rest
Event = Join | OfWorker | Kick | Pause | Resume | Start | Stop | Applied | Tick

# --- Answers: the first action of each event of a worker ---


@dataclass(frozen=True)
class Welcome:
    """The process is a member."""

    rank: int
    version: Version


@dataclass(frozen=True)
class Refused:
    """An error for the worker.

    Attributes:
        code: Code of the error.
        message: Reason, as text for people.
        remedy: Next action of the worker, or of a person.
        retry_s: Seconds after which the worker asks again; 0 if it does not.
    """

    code: Code
    message: str
    remedy: str
    retry_s: float = 0.0


#: No member has the id, or no longer.
UNKNOWN = Refused(Code.UNKNOWN_ID, "no worker of this run has this id", "join again")
BANNED = Refused(Code.KICKED, "the owner of the run has removed this worker", "ask the owner of the run")


@dataclass(frozen=True)
class Noted:
    """Nothing more to say; to an `Offer`: the push would count."""


@dataclass(frozen=True)
class Serve:
    """The last committed weights are newer than what the worker has."""

    version: Version


@dataclass(frozen=True)
class Hold:
    """There is nothing newer yet, or this worker is too far ahead: wait for `Changed`."""


@dataclass(frozen=True)
class Over:
    """The run has ended."""

    reason: str
    is_failure: bool


@dataclass(frozen=True)
class Granted:
    """Samples for the worker; the same ones again until a push with them counts, or is stale. None: no sample is left."""

    ranges: tuple[Range, ...]


#: The records of `wire.messages` say what becomes of a push.
Answer = Welcome | Refused | Noted | Serve | Hold | Over | Counted | Stale | Granted

# --- Actions, in the order in which they are to be done ---


@dataclass(frozen=True)
class Share:
    """A push that is averaged.

    Attributes:
        rank: Rank of the worker.
        push: The push.
        weight: Factor of its values; the step divides the sum of all by its `divisor`, so that nothing is rounded twice.
    """

    rank: int
    push: Push
    weight: float


@dataclass(frozen=True)
class Apply:
    """Average pushes in this order, do one step of the optimizer, and tell `Applied`.

    Attributes:
        version: Version of the weights so far.
        shares: Pushes, in this order.
        rate_factor: Factor of the learning rate.
        divisor: Divisor of the sum of all pushes.
    """

    version: Version
    shares: tuple[Share, ...]
    rate_factor: float
    divisor: float


@dataclass(frozen=True)
class Save:
    """Write a file with the weights of this moment."""

    snapshot: Snapshot = field(repr=False)


@dataclass(frozen=True)
class Drop:
    """A frame is not needed any more."""

    content: int


@dataclass(frozen=True)
class Changed:
    """Pulls that wait are to be asked again."""


@dataclass(frozen=True)
class Ended:
    """The run is over."""

    reason: str
    is_failure: bool


@dataclass(frozen=True)
class Log:
    """Tell people."""

    text: str
    is_warning: bool = False


Action = Answer | Apply | Save | Drop | Changed | Ended | Log
