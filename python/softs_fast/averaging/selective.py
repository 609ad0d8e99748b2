"""Ranks that train apart, in which bad ones take over the weights of good ones: no coordinator and no waiting."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.optim import Optimizer

from softs_fast.averaging.board import Board, Donation, Event, Refused
from softs_fast.averaging.decide import Decision, Member, Rules
from softs_fast.averaging.lineage import Check, line_of
from softs_fast.averaging.meeting import meet_at, own_rank
from softs_fast.averaging.schedule import Schedule
from softs_fast.averaging.takeover import Before, Takeover, Trainee, copy_by_name, keep_share
from softs_fast.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed import Store

logger = logging.getLogger(__name__)

# Replacements that `state_dict` has at most.
_MOST_REMEMBERED = 1000

Build = Callable[[], tuple[torch.nn.Module, Optimizer | None]]


@dataclass
class _Pending:
    """A decision of which the donors were asked for newer snapshots."""

    check: Check
    decision: Decision
    versions: dict[int, int] = field(default_factory=dict)


class SelectiveAveraging:
    """Replaces this rank's weights by an average of other ranks', when its rules say so.

    Every rank publishes snapshots of its weights, and decides for itself by those of the others. No call waits for
    another rank; ranks may come, go, stop and die. Weights change in place and inside `step` alone, so references to
    parameters, hooks, DistributedDataParallel, EMA copies, schedulers and tied weights stay valid.

    A rank with weights that are not finite counts as the worst, whatever its metric; a snapshot that is not finite is
    refused, and its rank donates no more until it has published another one.

    Args:
        model: of this rank; all ranks have the same tensors. One with others takes no part, and a warning says why.
        optimizer: its optimizer; None leaves all optimizers alone.
        rules: when to replace, and by what.
        meet: where the ranks find each other: a folder of this host, or a `torch.distributed.Store`; or a `Board`. A
            rank may join at any time.
        rank: this rank's number, which no other rank has; None for that of torch.distributed.
        takeover: what is taken over.
        schedule: when to publish.
        build: makes a model and an optimizer: for the strategy `reset_weights`, and with `Takeover(in_place=False)`,
            after which `model` and `optimizer` are new objects.
        on_replace: called after each replacement that is kept, with its event: to change what is not a weight.
        accept: called after each replacement; if it returns False, weights and optimizer are set back.
        clock: seconds.

    Raises:
        ConfigError: arguments do not fit each other.

    Example:
        >>> import tempfile, torch
        >>> from softs_fast.averaging import Rules, SelectiveAveraging
        >>> ours, theirs = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
        >>> rules = Rules(every=2, strategy="best_only")
        >>> with tempfile.TemporaryDirectory() as place:
        ...     with (
        ...         SelectiveAveraging(ours, None, rules, meet=place, rank=0) as our_rank,
        ...         SelectiveAveraging(theirs, None, rules, meet=place, rank=1) as their_rank,
        ...     ):
        ...         for _ in range(3):
        ...             _ = their_rank.step(metric=0.9)
        ...             event = our_rank.step(metric=0.1)
        >>> event.reason
        'metric 0.1 is among the worst 1 of 2; best_only of rank 1'
        >>> torch.equal(ours.weight, theirs.weight)
        True

    Source: own, see docs/averaging.md; after population based training, Jaderberg et al. 2017 (arXiv 1711.09846).
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Optimizer | None,
        rules: Rules,
        *,
        meet: Store | str | Path | Board,
        rank: int | None = None,
        takeover: Takeover | None = None,
        schedule: Schedule | None = None,
        build: Build | None = None,
        on_replace: Callable[[Event], object] | None = None,
        accept: Callable[[Event], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        takeover, schedule = takeover or Takeover(), schedule or Schedule()
        if build is None and (rules.strategy == "reset_weights" or not takeover.in_place):
            raise ConfigError('"reset_weights" and in_place=False need build=, which makes a model')
        if takeover.optimizer_state == "donor" and rules.strategy != "best_only":
            raise ConfigError(
                f'optimizer_state="donor" needs the strategy "best_only", with one donor; it is "{rules.strategy}"'
            )
        self._trainee = Trainee(model, optimizer)
        self._rules = rules
        self._board = meet if isinstance(meet, Board) else meet_at(meet, own_rank(rank))
        self._takeover = takeover
        self._schedule = schedule
        self._build = build
        self._on_replace = on_replace
        self._accept = accept
        self._clock = clock
        #: Published with each snapshot from now on: a small dict that JSON can hold, such as the learning rate.
        self.config: Mapping[str, Any] | None = None
        self._digest: bytes | None = None
        self._is_closed = False
        self._pending: _Pending | None = None
        # Of the weights that there are; and what the others see, which may be of the weights before a replacement.
        self._metric: float | None = None
        self._shown_metric: float | None = None
        self._version = 0
        self._must_publish = True
        self._not_before = -math.inf
        # Versions of other ranks that are not finite.
        self._refused: dict[int, int] = {}
        self._warned: set[int] = set()
        # The layout of the first model, and the tensors that the present one lacks.
        self._shared_names: list[str] = []
        self._absent: dict[str, torch.Tensor] = {}
        self._n_steps = self._trained = self._n_replaced = 0
        self._last_replaced: int | None = None
        self._lineage: list[dict[str, Any]] = []
        self._seen: tuple[Member, ...] = ()
        names = "checks published rejected refused_donors alive averaged waited_steps donor_age_s"
        self._counters = dict.fromkeys(names.split(), 0.0)

    @property
    def model(self) -> torch.nn.Module:
        """The model that is trained."""
        return self._trainee.model

    @property
    def optimizer(self) -> Optimizer | None:
        """Its optimizer."""
        return self._trainee.optimizer

    @property
    def rank(self) -> int:
        """This rank's number."""
        return self._board.rank

    @property
    def counters(self) -> dict[str, float]:
        """Numbers so far; `alive`, `averaged`, `waited_steps` and `donor_age_s` are of the last check or replacement.

        `alive` counts ranks, this one too; `donor_age_s` is the age of the oldest snapshot that was taken, in seconds.
        """
        return {
            "steps": self._n_steps,
            "trained": self._trained,
            "replaced": self._n_replaced,
            **self._counters,
        }

    @property
    def metrics(self) -> list[float]:
        """What ranks had reported at the last check, this one too."""
        return [member.metric for member in self._seen if member.metric is not None]

    def step(
        self, metric: float | None = None, *, number: int | None = None, publish: bool = True
    ) -> Event | None:
        """Count a training step; publish, check the rules, and change the weights if it is time for that.

        Call it after `optimizer.step()`: the weights must not be in use.

        Args:
            metric: of this rank now, higher is better; None if there is no news.
            number: of the step, if the caller counts; else one more than the last one.
            publish: whether this rank may publish now.

        Returns:
            What was replaced, if anything.

        Raises:
            ConfigError: it was shut down.
            SegmentError: no memory for snapshots.
        """
        if self._is_closed:
            raise ConfigError("selective averaging of this rank was shut down; make another one")
        self._n_steps = self._n_steps + 1 if number is None else number
        self._trained += 1
        if metric is not None:
            self._metric = self._smoothed(float(metric))
        is_due = self._n_steps % self._rules.every == 0
        if is_due and not self._trainee.is_finite():
            self._metric = math.nan
        if self._digest is None:
            self._digest = self._board.open(self._tensors())
        if publish:
            self._publish()
        if self._pending is None and is_due:
            self._check()
        if self._pending is not None and self._is_answered(self._pending):
            event = self._conclude(self._pending)
            self._pending = None
            return event
        return None

    def use(self, model: torch.nn.Module, optimizer: Optimizer | None) -> None:
        """Go on with another model. Tensors that it lacks, or has in other shapes, are shared as they were last."""
        shared = self._tensors() if self._digest is not None else {}
        self._trainee = Trainee(model, optimizer)
        found = self._trainee.tensors(self._takeover)
        self._absent = {name: tensor for name, tensor in shared.items() if not _fits(tensor, found.get(name))}

    def reset_age(self) -> None:
        """Have the lifetime and the burn-in begin now."""
        self._trained = 0

    def print_stats(self) -> None:
        """Print the counters to stdout, one per line."""
        for name, value in self.counters.items():
            print(f"rank {self.rank} {name}: {value:g}")

    def state_dict(self) -> dict[str, Any]:
        """Return counters, metric and lineage; save them with model and optimizer."""
        return {
            "n_steps": self._n_steps,
            "trained": self._trained,
            "n_replaced": self._n_replaced,
            "last_replaced": self._last_replaced,
            "metric": self._metric,
            "lineage": list(self._lineage),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was called."""
        self._n_steps, self._trained = int(state["n_steps"]), int(state["trained"])
        self._n_replaced, self._last_replaced = int(state["n_replaced"]), state["last_replaced"]
        self._metric = state["metric"]
        self._lineage = list(state["lineage"])
        self._pending = None
        self._must_publish = True

    def shutdown(self) -> None:
        """Leave the other ranks; a second call does nothing."""
        self._is_closed = True
        self._board.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Shut it down."""
        self.shutdown()

    def _smoothed(self, metric: float) -> float:
        share = self._schedule.smoothing
        if not share or self._metric is None or not math.isfinite(self._metric):
            return metric
        return share * self._metric + (1 - share) * metric

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Return what is shared; its layout is that of the first model for good."""
        found = self._trainee.tensors(self._takeover)
        if self._absent:
            names = self._shared_names
            found = {name: self._absent[name] if name in self._absent else found[name] for name in names}
        self._shared_names = list(found)
        return found

    def _publish(self) -> None:
        """Make a snapshot, if it is time for one."""
        every = self._schedule.publish_every or self._rules.every
        self._must_publish |= self._n_steps % every == 0 or self._board.is_asked()
        start = self._clock()
        if not self._must_publish or start < self._not_before:
            return
        self._shown_metric = self._shown_metric if self._metric is None else self._metric
        self._version = self._board.publish(
            self._tensors(),
            step=self._n_steps,
            metric=self._shown_metric,
            trained=self._trained,
            config=self.config,
        )
        self._not_before = start + 2 * (self._clock() - start)
        self._must_publish = False
        self._counters["published"] += 1

    def _check(self) -> None:
        """Decide, and ask the donors for newer snapshots."""
        check = self._look()
        decision = check.decide()
        self._counters["checks"] += 1
        if not decision.replace:
            self._write(check, decision, ())
            return
        ranks = [rank for rank, _ in decision.donors]
        versions = {member.rank: member.version for member in check.members if member.rank in ranks}
        self._pending = _Pending(check, decision, versions)
        if self._schedule.max_wait_steps and ranks:
            self._board.ask(ranks)

    def _look(self) -> Check:
        """Return what is known now."""
        digest = self._digest or b""
        own = Member(self.rank, True, self._version, self._trained, self._metric, digest)
        others = [self._without_refused(member) for member in self._board.members()]
        for member in others:
            if member.version and member.digest != digest and member.rank not in self._warned:
                self._warned.add(member.rank)
                logger.warning(
                    "rank %d takes no part in averages: %s",
                    member.rank,
                    self._board.difference(member.rank),
                )
        self._seen = (own, *others)
        self._counters["alive"] = 1 + sum(member.alive for member in others)
        return Check(
            self.rank,
            self._n_steps,
            self._seen,
            self._rules,
            self._last_replaced,
            self._n_replaced,
            self._schedule.seed,
        )

    def _without_refused(self, member: Member) -> Member:
        if self._refused.get(member.rank) == member.version:
            return replace(member, metric=math.nan)
        return member

    def _is_answered(self, pending: _Pending) -> bool:
        """Return whether it is time to take the weights."""
        waited = self._n_steps - pending.check.step
        if waited >= self._schedule.max_wait_steps or not pending.versions:
            return True
        now = {member.rank: member for member in self._board.members()}
        return all(
            rank not in now or not now[rank].alive or now[rank].version > version
            for rank, version in pending.versions.items()
        )

    def _conclude(self, pending: _Pending) -> Event | None:
        """Take the weights of the donors, or of others in place of those that are of no use."""
        check, decision = pending.check, pending.decision
        waited = self._n_steps - check.step
        before = Before.of(self._trainee, self._takeover) if self._accept is not None else None
        taken = self._take(decision)
        while isinstance(taken, Refused):
            self._counters["refused_donors"] += 1
            check = self._without(check, taken)
            decision = (
                check.decide() if taken.rank is not None else Decision(False, (), f"kept: {taken.reason}")
            )
            if not decision.replace:
                self._write(check, decision, ())
                return None
            taken = self._take(decision)
        event = Event(
            self.rank,
            self._n_steps,
            decision.reason,
            self._metric,
            tuple(taken),
            waited,
            True,
            random.Random(f"{self._schedule.seed} {self.rank} {self._n_replaced}"),
        )
        if before is not None and self._accept is not None and not self._accept(event):
            event = replace(event, is_kept=False)
            before.restore()
            self.use(before.trainee.model, before.trainee.optimizer)
        self._write(check, decision, event.donations, applied_at=self._n_steps, accepted=event.is_kept)
        self._count(event)
        if event.is_kept and self._on_replace is not None:
            self._on_replace(event)
        return event

    def _take(self, decision: Decision) -> list[Donation] | Refused:
        """Change the weights; they are as they were if the donors cannot be averaged."""
        taken: list[Donation] = []
        tensors = self._tensors()
        momentum = self._takeover.momentum
        if decision.donors:
            old = {name: tensor.clone() for name, tensor in tensors.items()} if momentum else tensors
            read = self._board.average(decision.donors, tensors)
            if isinstance(read, Refused):
                return read
            taken = list(read)
            if self._takeover.buffers == "best" and len(decision.donors) > 1:
                self._take_buffers(decision, tensors)
            if momentum:
                keep_share(tensors, old, momentum)
        if self._build is not None:
            model, optimizer = self._build()
            self._enter(Trainee(model, optimizer), tensors if decision.donors else {})
        if self._takeover.in_place and self._takeover.optimizer_state == "fresh":
            self._trainee.drop_state()
        return taken

    def _take_buffers(self, decision: Decision, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take the buffers of the donor with the most weight; those of the average stay if it cannot be read again."""
        best = max(decision.donors, key=lambda donor: (donor[1], -donor[0]))[0]
        buffers = self._trainee.buffer_names()
        into = {
            name: tensor if name in buffers else torch.empty_like(tensor) for name, tensor in tensors.items()
        }
        self._board.average([(best, 1.0)], into)

    def _enter(self, new: Trainee, averaged: Mapping[str, torch.Tensor]) -> None:
        """Go on with a new model that has the averaged weights, or with its weights in the model that there is."""
        if not self._takeover.in_place:
            copy_by_name(new.tensors(self._takeover), averaged)
            self.use(new.model, new.optimizer)
        elif not averaged:
            own, fresh = self._trainee.tensors(self._takeover), new.tensors(self._takeover)
            old = {name: tensor.clone() for name, tensor in own.items()}
            copy_by_name(own, fresh)
            if self._takeover.momentum:
                keep_share(own, old, self._takeover.momentum)

    def _without(self, check: Check, refused: Refused) -> Check:
        """Return what is known, without a donor that is of no use."""
        logger.info("rank %s is no donor: %s", refused.rank, refused.reason)
        members = []
        for member in check.members:
            if member.rank == refused.rank:
                self._refused[member.rank] = member.version
                member = replace(member, alive=False)
            members.append(member)
        return replace(check, members=tuple(members))

    def _count(self, event: Event) -> None:
        self._last_replaced = event.step
        self._counters["averaged"] = len(event.donations)
        self._counters["waited_steps"] = event.waited_steps
        self._counters["donor_age_s"] = max((one.age_s for one in event.donations), default=0.0)
        if not event.is_kept:
            self._counters["rejected"] += 1
            return
        self._n_replaced += 1
        self._trained = 0
        self._metric = None
        self._must_publish = True
        self._not_before = -math.inf
        self._lineage.append(
            {
                "step": event.step,
                "donors": [[one.rank, one.version, one.weight] for one in event.donations],
                "reason": event.reason,
            }
        )
        del self._lineage[:-_MOST_REMEMBERED]
        self._publish()

    def _write(
        self,
        check: Check,
        decision: Decision,
        donations: tuple[Donation, ...],
        *,
        applied_at: int | None = None,
        accepted: bool = False,
    ) -> None:
        if self._schedule.log is not None:
            line = line_of(check, decision, donations, applied_at=applied_at, accepted=accepted)
            with Path(self._schedule.log).open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")


def _fits(tensor: torch.Tensor, other: torch.Tensor | None) -> bool:
    return other is not None and (other.shape, other.dtype) == (tensor.shape, tensor.dtype)
