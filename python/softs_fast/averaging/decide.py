"""Decides whether this rank takes over the weights of other ranks, and of which: no clock, no memory, no message.

Each rank decides for itself, by what it sees of the others. Two ranks that see different things do no harm, because a
donor only publishes.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import Any, Literal, get_args

from softs_fast.averaging.reports import Report
from softs_fast.errors import ConfigError

Strategy = Literal["mean", "weighted_mean", "best_only", "reset_weights"]
Mode = Literal["worst_ratio", "threshold", "age"]


@dataclass(frozen=True)
class Rules:
    """When a rank is replaced, and by what. Metrics are higher for better models.

    Attributes:
        every: Steps from one check to the next.
        mode: `worst_ratio` replaces the worst share of the ranks, `threshold` each with a metric below `threshold`,
            `age` each that has trained for longer than its lifetime.
        strategy: `mean` of the donors, `weighted_mean` by the order of their metrics, `best_only`, or `reset_weights`,
            which takes new weights and has no donors.
        replace_worst: Share of the ranks that are replaced in a check, at least one of them, never all; 0 for none.
        threshold: Metric below which the mode `threshold` replaces a rank; in `worst_ratio`, ranks are replaced only
            while the worst is below it.
        age_range: Shortest and longest lifetime, steps; each lifetime is drawn when the one before has ended.
        donor_share: Share of the ranks, drawn at random, of which the average is taken, at least one.
        burn_in: Steps that a rank trains, after its start or last replacement, before it donates or is replaced.
        cooldown: Steps after a replacement in which a rank is not replaced again.
        patience: Checks in a row in which the metric must be bad before a rank is replaced, for metrics that vary by
            chance; not for the mode `age`.

    Raises:
        ConfigError: a value is out of range.
    """

    every: int = 100
    mode: Mode = "worst_ratio"
    strategy: Strategy = "mean"
    replace_worst: float = 0.25
    threshold: float | None = None
    age_range: tuple[int, int] = (50, 150)
    donor_share: float = 1.0
    burn_in: int = 0
    cooldown: int = 0
    patience: int = 1

    @property
    def compares_metrics(self) -> bool:
        """Whether metrics of ranks are compared; by age alone a rank is replaced whatever they are."""
        return self.mode != "age" or self.strategy in ("weighted_mean", "best_only")

    def __post_init__(self) -> None:
        check_known("mode", self.mode, Mode)
        check_known("strategy", self.strategy, Strategy)
        for name, least in (("every", 1), ("burn_in", 0), ("cooldown", 0), ("patience", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                unit = "checks" if name == "patience" else "steps"
                raise ConfigError(f"{name} is {value!r}; it counts {unit}, from {least}")
        if not 0 <= self.replace_worst <= 1:
            raise ConfigError(f"replace_worst is {self.replace_worst}; a share is from 0 to 1")
        if not 0 < self.donor_share <= 1:
            raise ConfigError(f"donor_share is {self.donor_share}; it is above 0, and at most 1")
        if self.threshold is not None and math.isnan(self.threshold):
            raise ConfigError("threshold is nan; give a number, or None")
        if self.mode == "threshold" and self.threshold is None:
            raise ConfigError('mode "threshold" needs a threshold; it is None')
        shortest, longest = self.age_range
        if not 0 <= shortest <= longest:
            raise ConfigError(f"age_range is {self.age_range}; give the shortest and the longest lifetime")


@dataclass(frozen=True)
class Member:
    """A rank as another one sees it now, or itself.

    Attributes:
        rank: its number.
        alive: whether its process still runs, as far as known.
        version: number of its newest snapshot; 0 before the first one.
        trained: steps since its start or last replacement.
        metric: higher is better; NaN counts as the worst; None if it has reported none.
        digest: hash of the names, shapes and dtypes of its tensors.
        reports: Its reports of its last checks, the newest one last.
    """

    rank: int
    alive: bool
    version: int
    trained: int
    metric: float | None
    digest: bytes
    reports: tuple[Report, ...] = ()

    def at(self, check: int) -> Member:
        """Return the rank as it reported itself at a check; without a metric if it did not, or does not show it now."""
        for report in reversed(self.reports):
            if report.check == check:
                return replace(self, metric=report.metric, trained=report.trained, reports=())
        return replace(self, metric=None, reports=())


@dataclass(frozen=True)
class Decision:
    """What a rank does now.

    Attributes:
        replace: Whether it takes other weights.
        donors: Rank and weight of each donor, by rank; the weights add up to 1. None with `reset_weights`.
        reason: Reason for the decision, as text.
        n_bad: Checks in a row, this one too, in which the metric of the rank was bad.
    """

    replace: bool
    donors: tuple[tuple[int, float], ...]
    reason: str
    n_bad: int = 0


def decide(
    me: int,
    step: int,
    members: Sequence[Member],
    rules: Rules,
    last_replaced: int | None,
    n_replaced: int,
    seed: int,
    n_bad: int = 0,
) -> Decision:
    """Return whether rank `me` is replaced at `step`, and by which donors.

    The same arguments give the same result in every process and version of Python; the order of `members` does not
    matter. A better metric of `me` never leads to its replacement.

    Args:
        me: This rank.
        step: Number of its steps so far.
        members: All ranks that it knows, itself too, each once.
        rules: When to replace, and by what.
        last_replaced: Its step at its last replacement; None before the first.
        n_replaced: Number of its replacements so far.
        seed: Seed of the random choice of donors and lifetimes.
        n_bad: Value `n_bad` of its last decision; 0 before the first.

    Raises:
        ConfigError: a rank is in `members` twice, or `me` is not there.

    Example:
        >>> from softs_fast.averaging.decide import Member, Rules, decide
        >>> board = [Member(rank, True, 1, 100, metric, b"") for rank, metric in enumerate([0.1, 0.5, 0.9])]
        >>> decide(0, 100, board, Rules(strategy="best_only"), None, 0, seed=0)
        Decision(replace=True, donors=((2, 1.0),), reason='metric 0.1 is among the worst 1 of 3; best_only of rank 2', n_bad=1)

    Source: own, see docs/averaging.md; exploit step of population based training, Jaderberg et al. 2017, section 3.
    """
    own, others = _split(me, members)
    if step % rules.every:
        return _keep(f"step {step} is no multiple of {rules.every}", n_bad)
    if last_replaced is not None and step - last_replaced < rules.cooldown:
        return _keep(f"replaced {step - last_replaced} steps ago; the cooldown is {rules.cooldown} steps")
    if own.trained < rules.burn_in:
        return _keep(f"trained {own.trained} steps; the burn-in is {rules.burn_in} steps")
    peers = [other for other in others if other.alive and other.digest == own.digest]
    if rules.mode == "age":
        lifetime = lifetime_of(me, n_replaced, rules, seed)
        if own.trained <= lifetime:
            return _keep(f"trained {own.trained} steps of a lifetime of {lifetime}")
        n_bad = 0  # no metric is looked at
        why = f"trained {own.trained} steps, longer than its lifetime of {lifetime}"
        donors = [peer for peer in peers if _donates_by_age(peer, rules.strategy)]
    else:
        if own.metric is None:
            return _keep("no metric of this rank")
        # Those that have just begun count too: one that was replaced a moment ago is still one of the worst, and the
        # next one does not move up.
        ranked = [peer for peer in peers if peer.metric is not None]
        is_worst, why, donors = (_among_worst if rules.mode == "worst_ratio" else _below)(own, ranked, rules)
        if not is_worst:
            return _keep(why)
        n_bad += 1
        if n_bad < rules.patience:
            return _keep(f"{why}, for {n_bad} of {rules.patience} checks in a row", n_bad)
        donors = [donor for donor in donors if _is_finite(donor) and _score(donor) > _score(own)]
    donors = [donor for donor in donors if donor.version > 0 and donor.trained >= rules.burn_in]
    if not donors:
        return _keep(f"{why}, but there is no donor: {_why_none(others, own, rules)}", n_bad)
    if rules.strategy == "reset_weights":
        return Decision(True, (), f"{why}; reset_weights", n_bad)
    weights = _weigh(
        donors, rules, me=me, step=step, n_replaced=n_replaced, seed=seed, n_ranks=len(peers) + 1
    )
    reason = f"{why}; {rules.strategy} of rank {_list(rank for rank, _ in weights)}"
    return Decision(True, weights, reason, n_bad)


def lifetime_of(me: int, n_replaced: int, rules: Rules, seed: int) -> int:
    """Return how many steps a rank trains until it is replaced in the mode `age`."""
    shortest, longest = rules.age_range
    (number,) = _numbers(1, seed, me, n_replaced)
    return shortest + number % (longest - shortest + 1)


def n_worst(n: int, share: float) -> int:
    """Return how many of `n` ranks are replaced: at least one, unless the share is 0, and never all."""
    return min(n - 1, max(1, int(n * share))) if share > 0 else 0


def check_known(what: str, name: str, names: Any) -> None:
    """Raise ConfigError unless a name is one of a `Literal`."""
    if name not in get_args(names):
        raise ConfigError(f'{what} is "{name}"; known are {", ".join(get_args(names))}')


def _split(me: int, members: Iterable[Member]) -> tuple[Member, list[Member]]:
    """Return this rank, and the others by rank."""
    in_order = sorted(members, key=attrgetter("rank"))
    for one, next_one in pairwise(in_order):
        if one.rank == next_one.rank:
            raise ConfigError(f"rank {one.rank} is among the members twice")
    own = [member for member in in_order if member.rank == me]
    if not own:
        raise ConfigError(f"rank {me} is not among the {len(in_order)} members")
    return own[0], [member for member in in_order if member.rank != me]


def _keep(reason: str, n_bad: int = 0) -> Decision:
    return Decision(False, (), reason, n_bad)


def _score(member: Member) -> float:
    """Return the metric, where NaN is the worst."""
    return -math.inf if member.metric is None or math.isnan(member.metric) else member.metric


def _is_finite(member: Member) -> bool:
    return member.metric is not None and math.isfinite(member.metric)


def _donates_by_age(member: Member, strategy: Strategy) -> bool:
    """Return whether a rank may donate where metrics do not decide: one that reports NaN is broken."""
    return _is_finite(member) or (member.metric is None and strategy in ("mean", "reset_weights"))


def _among_worst(own: Member, ranked: list[Member], rules: Rules) -> tuple[bool, str, list[Member]]:
    """Return whether this rank is among the worst ones, why, and the ranks that are not."""
    n = len(ranked) + 1
    n_replaced = n_worst(n, rules.replace_worst)
    # Of equal metrics the lower rank is the worse one, on all ranks.
    mine = (_score(own), own.rank)
    keys = [(_score(member), member.rank) for member in ranked]
    place = sum(key < mine for key in keys)
    value = f"metric {_number_text(own)} is"
    if place >= n_replaced:
        return False, f"{value} at place {n - place} of {n}; the worst {n_replaced} are replaced", []
    worst = min(keys)[0] if place else mine[0]
    if rules.threshold is not None and worst >= rules.threshold:
        return False, f"the worst metric, {worst:.6g}, is not below {rules.threshold:.6g}", []
    # This rank is one of those that are replaced.
    limit = sorted(keys)[n_replaced - 1]
    rest = [member for member, key in zip(ranked, keys, strict=True) if key >= limit]
    return True, f"{value} among the worst {n_replaced} of {n}", rest


def _below(own: Member, ranked: list[Member], rules: Rules) -> tuple[bool, str, list[Member]]:
    """Return whether this rank is below the threshold, why, and the ranks that are not."""
    threshold = math.inf if rules.threshold is None else rules.threshold
    if _score(own) >= threshold:
        return False, f"metric {_number_text(own)} is not below {threshold:.6g}", []
    rest = [member for member in ranked if _score(member) >= threshold]
    return True, f"metric {_number_text(own)} is below {threshold:.6g}", rest


def _number_text(member: Member) -> str:
    return f"{member.metric:.6g}"


def _why_none(others: list[Member], own: Member, rules: Rules) -> str:
    """Return the state of the other ranks, in numbers."""
    alive = [other for other in others if other.alive]
    counts = {
        "are not alive": len(others) - len(alive),
        "have published nothing": sum(other.version == 0 for other in alive),
        "have other tensors": sum(other.version > 0 and other.digest != own.digest for other in alive),
        f"have trained less than {rules.burn_in} steps": sum(
            other.trained < rules.burn_in for other in alive
        ),
        "have no finite metric": sum(not _is_finite(other) for other in alive),
    }
    found = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return f"{found or 'none is better'}, of {len(others)} others"


def _weigh(
    donors: list[Member], rules: Rules, *, me: int, step: int, n_replaced: int, seed: int, n_ranks: int
) -> tuple[tuple[int, float], ...]:
    """Return the donors that are taken, by rank, and their weights."""
    if rules.strategy == "best_only":
        best = max(donors, key=lambda donor: (_score(donor), -donor.rank))
        return ((best.rank, 1.0),)
    n_wanted = max(1, int(rules.donor_share * n_ranks))
    if n_wanted < len(donors):
        numbers = _numbers(len(donors), seed, me, n_replaced, step)
        limit = sorted(numbers)[n_wanted]
        donors = [donor for donor, number in zip(donors, numbers, strict=True) if number < limit]
    if rules.strategy == "mean":
        return tuple((donor.rank, 1 / len(donors)) for donor in donors)
    places = _places([_score(donor) for donor in donors])
    total = math.fsum(places)
    return tuple((donor.rank, place / total) for donor, place in zip(donors, places, strict=True))


def _places(scores: list[float]) -> list[float]:
    """Return the place of each score, 1 for the worst; equal scores share the mean of theirs."""
    first: dict[float, int] = {}
    count: dict[float, int] = {}
    for place, score in enumerate(sorted(scores), 1):
        first.setdefault(score, place)
        count[score] = count.get(score, 0) + 1
    return [first[score] + (count[score] - 1) / 2 for score in scores]


def _numbers(n: int, *parts: int) -> tuple[int, ...]:
    """Return `n` numbers of 64 bits that depend on all parts, the same in every process."""
    text = " ".join(map(str, parts)).encode()
    return struct.unpack(f"<{n}Q", hashlib.shake_128(text).digest(8 * n))


def _list(ranks: Iterable[int]) -> str:
    """Return "1, 2, 3", shortened."""
    every = list(ranks)
    text = ", ".join(map(str, every[:8]))
    return text if len(every) <= 8 else f"{text} and {len(every) - 8} more"
