"""Ranks that train apart, in which bad ones take over the weights of good ones: no coordinator and no waiting."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.optim import Optimizer

from softs_fast.averaging.board import Board, Event, Fetch, Refused
from softs_fast.averaging.checks import Checks, Pending
from softs_fast.averaging.decide import Decision, Member, Rules
from softs_fast.averaging.lineage import Check, line_of
from softs_fast.averaging.meeting import meet_at, own_rank
from softs_fast.averaging.publishing import Publishing
from softs_fast.averaging.schedule import Schedule, check_same_rules
from softs_fast.averaging.shards import Shards, outcome_of, refusal_of
from softs_fast.averaging.shared_model import Build, SharedModel
from softs_fast.averaging.takeover import Takeover, Trainee
from softs_fast.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed import Store

logger = logging.getLogger(__name__)

# Replacements that `state_dict` has at most.
_MOST_REMEMBERED = 1000


class SelectiveAveraging:
    """Replaces this rank's weights by an average of other ranks', when its rules say so.

    Every rank publishes snapshots of its weights, and decides for itself by those of the others. No call waits for
    another rank; ranks may come, go, stop and die. The weights of donors are fetched beside the training, and taken
    over in the first step that finds them complete. Weights change in place and inside `step` alone, so references to
    parameters, hooks, DistributedDataParallel, EMA copies, schedulers and tied weights stay valid.

    A rank with weights that are not finite counts as the worst, whatever its metric; a snapshot that is not finite is
    refused, and its rank donates no more until it has published another one.

    Args:
        model: Model of this rank. Its parameters that are trained in the first step are shared, and buffers that a checkpoint
            has; all ranks have the same ones. A rank with others takes no part, and a warning says why.
        optimizer: Its optimizer; None leaves all optimizers alone.
        rules: When to replace, and by what.
        meet: Place where the ranks find each other: a folder of this host, or a `torch.distributed.Store`; or a
            `Board`. A rank may join at any time.
        rank: This rank's number, which no other rank has; None for that of torch.distributed. The processes that have the
            shards of one distributed model, such as FSDP2 makes, are one rank together; None is that of the first one.
        takeover: Settings of what is taken over.
        schedule: When to publish.
        build: Function that makes a model and an optimizer: for the strategy `reset_weights`, and with
            `Takeover(in_place=False)`, after which `model` and `optimizer` are new objects.
        on_replace: Function called after each replacement that is kept, with its event: to change what is not a
            weight.
        accept: Function called after each replacement; if it returns False or raises, weights and optimizer are set
            back.
        clock: Function that returns the time, seconds.

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
        ...         event = None
        ...         while event is None:
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
        self._shared = SharedModel(Trainee(model, optimizer), takeover, build)
        self._rules = rules
        self._shards = shards = Shards(model)
        if not isinstance(meet, Board):
            meet = meet_at(meet, own_rank(shards.first if rank is None else rank), shards.place)
        self._board = meet
        self._schedule = schedule
        self._on_replace = on_replace
        self._accept = accept
        self._publishing = Publishing(
            self._board, self._shared, shards, schedule.publish_every or rules.every, clock
        )
        #: Published with each snapshot from now on: a small dict that JSON can hold, such as the learning rate.
        self.config: Mapping[str, Any] | None = None
        self._checks = Checks(self._board, rules, schedule)
        self._is_open = False  # a check waits for its decision, on all shards alike
        self._digest: bytes | None = None
        self._is_closed = False
        self._pending: Pending | None = None
        # Of the weights that there are.
        self._metric: float | None = None
        self._n_steps = self._trained = self._n_replaced = self._n_bad = 0
        self._last_replaced: int | None = None
        self._lineage: list[dict[str, Any]] = []
        self._seen: tuple[Member, ...] = ()
        names = "checks published rejected refused_donors alive strangers averaged waited_steps donor_age_s"
        self._counters = dict.fromkeys(names.split(), 0.0)

    @property
    def model(self) -> torch.nn.Module:
        """The model that is trained."""
        return self._shared.trainee.model

    @property
    def optimizer(self) -> Optimizer | None:
        """Its optimizer."""
        return self._shared.trainee.optimizer

    @property
    def rank(self) -> int:
        """This rank's number."""
        return self._board.rank

    @property
    def counters(self) -> dict[str, float]:
        """Numbers so far; `alive`, `averaged`, `waited_steps` and `donor_age_s` are of the last check or replacement.

        `alive` counts ranks, this one too; `strangers` those that take no part, as they have other tensors or cannot be
        read here; `donor_age_s` is the age of the oldest snapshot that was taken, in seconds.
        """
        return {
            "steps": self._n_steps,
            "trained": self._trained,
            "replaced": self._n_replaced,
            **self._counters,
        }

    @property
    def metrics(self) -> list[float]:
        """What ranks had reported at the last check that was decided, this one too."""
        return [one.metric for one in self._seen if one.metric is not None]

    def step(
        self, metric: float | None = None, *, number: int | None = None, publish: bool = True
    ) -> Event | None:
        """Count a training step; publish, check the rules, and take over weights that have been fetched.

        Call it after `optimizer.step()`: the weights must not be in use.

        Args:
            metric: Metric of this rank now, higher is better; None if there is no news.
            number: Number of the step, if the caller counts; else one more than the last one.
            publish: Whether this rank may publish now.

        Returns:
            What was replaced, if anything.

        Raises:
            ConfigError: it was shut down, or a parameter cannot be shared; the text names it. Or others are known, and at
                ten checks none of them could be averaged with.
            SegmentError: no memory for snapshots.
        """
        if self._is_closed:
            raise ConfigError("selective averaging of this rank was shut down; make another one")
        self._n_steps = self._n_steps + 1 if number is None else number
        self._trained += 1
        if metric is not None:
            self._metric = self._smoothed(float(metric))
        if self._digest is None:
            self._digest = self._open()
        is_due = self._n_steps % self._rules.every == 0
        if is_due or self._is_open:
            self._counters["alive"] = self._checks.look(self._digest)
            self._counters["strangers"] = len(self._checks.strangers)
        if is_due:
            said = self._shards.gather((self._publishing.is_finite(), self._checks.why_alone()))
            if not all(is_finite for is_finite, _ in said):
                self._metric = math.nan
            why_alone = next((why for _, why in said if why), "")
            if why_alone:
                raise ConfigError(why_alone)
            self._checks.report(self._n_steps, self._own(self._digest))
        if self._pending is not None:
            self._drop_checks()
            event = self._advance(self._pending)
        else:
            event = self._decide(is_due=is_due)
        # After weights were replaced, the next step publishes them: this call has made one copy already.
        if event is None and publish:
            self._publish()
        return event

    def use(self, model: torch.nn.Module, optimizer: Optimizer | None) -> None:
        """Go on with another model; a replacement that was decided for the old one is dropped.

        Tensors that it lacks, or has in other shapes, are shared as they were last.
        """
        if model is not self.model:
            self._drop()
            self._publishing.begin_anew()
        self._board.settle()
        self._shared.use(Trainee(model, optimizer))
        if self._digest is not None:
            self._publishing.follow()

    def reset_age(self) -> None:
        """Have the lifetime and the burn-in begin now."""
        self._trained = 0

    def state_dict(self) -> dict[str, Any]:
        """Return counters, metric and lineage; save them with model and optimizer."""
        return {
            "n_steps": self._n_steps,
            "trained": self._trained,
            "n_replaced": self._n_replaced,
            "last_replaced": self._last_replaced,
            "n_bad": self._n_bad,
            "metric": self._metric,
            "check": self._checks.number,
            "lineage": list(self._lineage),
            "rules": asdict(self._rules),
            "seed": self._schedule.seed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was called; a replacement that was decided before is dropped.

        Raises:
            ConfigError: The state is of other rules or another seed, and nothing has changed. Without its "rules" and
                "seed" it is loaded all the same.
        """
        check_same_rules(self._rules, self._schedule, state)
        self._drop()
        self._publishing.begin_anew()
        self._n_steps, self._trained = int(state["n_steps"]), int(state["trained"])
        self._n_replaced, self._last_replaced = int(state["n_replaced"]), state["last_replaced"]
        self._metric, self._n_bad = state["metric"], int(state["n_bad"])
        self._checks.number = int(state.get("check", 0))
        self._lineage = list(state["lineage"])

    def shutdown(self) -> None:
        """Leave the other ranks; a replacement that was decided is dropped. A second call does nothing."""
        self._is_closed = True
        self._drop()
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

    def _publish(self) -> None:
        self._counters["published"] += self._publishing.offer(
            step=self._n_steps, metric=self._metric, trained=self._trained, config=self.config
        )

    def _decide(self, *, is_due: bool) -> Event | None:
        """Decide the checks that can be decided, all shards as the first one."""
        event = None
        while event is None and self._pending is None and (is_due or self._is_open):
            own = self._checks.next(self._n_steps, self._last_replaced, self._n_replaced, self._n_bad)
            check, self._is_open = self._shards.gather((own, self._checks.is_open))[0]
            if check is None:
                break
            event = self._check(check)
        return event

    def _check(self, check: Check) -> Event | None:
        """Decide, and ask the donors for newer snapshots."""
        self._seen = check.members
        decision = check.decide()
        self._counters["checks"] += 1
        self._n_bad = decision.n_bad
        if not decision.replace:
            self._write(check, decision)
            return None
        ranks = [rank for rank, _ in decision.donors]
        self._pending = pending = Pending(check, decision, self._n_steps, self._checks.versions(ranks))
        if not ranks:
            return self._conclude(pending, None)
        if self._schedule.max_wait_steps:
            self._board.ask(ranks)
        else:
            self._fetch(pending)
        return None

    def _advance(self, pending: Pending) -> Event | None:
        """Go on with a decision: wait for the donors, fetch their weights, and take them when they are there."""
        if not pending.is_fetching:
            if all(self._shards.gather(self._is_answered(pending))):
                self._fetch(pending)
            return None
        found = self._board.fetched()
        found_by_all = self._shards.gather(outcome_of(found))
        refused = refusal_of(found_by_all)
        if refused is not None:
            return self._reconsider(pending, refused)
        if found is None or isinstance(found, Refused) or None in found_by_all:
            return None
        if pending.buffers is None and self._wants_buffers(pending.decision):
            pending.buffers = self._shared.buffers_of(found)
            self._board.fetch(pending.decision.donors)
            return None
        return self._conclude(pending, found)

    def _fetch(self, pending: Pending) -> None:
        """Begin to fetch; before the average of several donors the buffers of the best one, if they are wanted."""
        pending.is_fetching = True
        donors = pending.decision.donors
        if self._wants_buffers(pending.decision):
            donors = ((max(donors, key=lambda donor: (donor[1], -donor[0]))[0], 1.0),)
        self._board.fetch(donors)

    def _wants_buffers(self, decision: Decision) -> bool:
        """Return whether buffers are those of one donor while weights are those of several."""
        return len(decision.donors) > 1 and bool(self._shared.of_best)

    def _reconsider(self, pending: Pending, refused: Refused) -> Event | None:
        """Decide again, without a donor that is of no use."""
        self._counters["refused_donors"] += 1
        check = self._checks.without(pending.check, refused)
        decision = Decision(False, (), f"kept: {refused.reason}")
        if refused.rank is not None:
            decision = check.decide()
        if not decision.replace:
            self._pending = None
            self._write(check, decision)
            return None
        self._pending = Pending(check, decision, self._n_steps, {})
        self._fetch(self._pending)
        return None

    def _open(self) -> bytes:
        """Make this rank known to the others; return the digest of its tensors."""
        ranks = self._shards.gather(self.rank)
        if len(set(ranks)) > 1:
            raise ConfigError(
                f"the shards of one model have ranks {ranks}; expected one rank, as they are replaced together: give each "
                "the number of their replica, or None"
            )
        digest = self._board.open(self._shared.tensors(), self._shared.buffers)
        self._publishing.follow()
        return digest

    def _own(self, digest: bytes) -> Member:
        """Return this rank as it is now."""
        return Member(self.rank, True, self._publishing.version, self._trained, self._metric, digest)

    def _is_answered(self, pending: Pending) -> bool:
        """Return whether the donors have newer snapshots, or have had the time for that."""
        if self._n_steps - pending.since >= self._schedule.max_wait_steps:
            return True
        now = {member.rank: member for member in self._board.members()}
        return all(
            rank not in now or not now[rank].alive or now[rank].version > version
            for rank, version in pending.versions.items()
        )

    def _conclude(self, pending: Pending, fetch: Fetch | None) -> Event:
        """Take the weights that were fetched, or new ones."""
        self._pending = None
        check, decision = pending.check, pending.decision
        model = self.model
        self._board.settle()
        before = self._shared.before() if self._accept is not None else None
        if fetch is not None:
            self._shared.take(fetch, pending.buffers or {})
        else:
            self._shared.reset()
        event = Event(
            self.rank,
            self._n_steps,
            decision.reason,
            self._metric,
            tuple(fetch.donations) if fetch is not None else (),
            self._n_steps - check.step,
            True,
            random.Random(f"{self._schedule.seed} {self.rank} {self._n_replaced}"),
        )
        error = None
        if before is not None and self._accept is not None:
            try:
                is_kept = self._accept(event)
            except BaseException as raised:
                is_kept, error = False, raised
            if not all(self._shards.gather(bool(is_kept))):
                event = replace(event, is_kept=False)
                self._shared.undo(before)
        self._drop_checks()
        self._write(check, decision, event)
        if self.model is not model:
            self._publishing.follow()
        self._count(event)
        if error is not None:
            raise error
        if event.is_kept and self._on_replace is not None:
            self._on_replace(event)
        return event

    def _drop(self) -> None:
        """Remove a decision that was not applied, and checks that are not decided."""
        self._drop_checks()
        pending, self._pending = self._pending, None
        if pending is not None:
            self._write(pending.check, pending.decision)

    def _drop_checks(self) -> None:
        self._checks.drop()
        self._is_open = False

    def _count(self, event: Event) -> None:
        self._last_replaced = event.step
        self._n_bad = 0
        self._counters["averaged"] = len(event.donations)
        self._counters["waited_steps"] = event.waited_steps
        self._counters["donor_age_s"] = max((one.age_s for one in event.donations), default=0.0)
        if not event.is_kept:
            self._counters["rejected"] += 1
            return
        self._n_replaced += 1
        self._trained = 0
        self._metric = None
        self._publishing.begin_anew()
        self._lineage.append(
            {
                "step": event.step,
                "donors": [[one.rank, one.version, one.weight] for one in event.donations],
                "reason": event.reason,
            }
        )
        del self._lineage[:-_MOST_REMEMBERED]

    def _write(self, check: Check, decision: Decision, event: Event | None = None) -> None:
        if self._schedule.log is not None and self._shards.is_first:
            with Path(self._schedule.log).open("a", encoding="utf-8") as file:
                file.write(f"{line_of(check, decision, event)}\n")
