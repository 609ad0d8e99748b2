"""A line of JSON for each check of the rules, and how the same board is decided again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from softs_fast.averaging.board import Event
from softs_fast.averaging.decide import Decision, Member, Rules, decide
from softs_fast.errors import ConfigError

# Fields of a check that a line has as they are.
_NUMBERS = ("rank", "step", "seed", "last_replaced", "n_replaced", "n_bad")
# A line has about 80 bytes per rank.
_MAX_LINE_BYTES = 16 << 20


@dataclass(frozen=True)
class Check:
    """All that a decision was made of.

    Attributes:
        rank: Rank that decided.
        step: Step of the rank at the check.
        members: The ranks as it saw them, itself too.
        rules: Its rules.
        last_replaced: Its step at its last replacement.
        n_replaced: Number of its replacements before.
        seed: Seed of its random choices.
        n_bad: Value `n_bad` of its decision before.
    """

    rank: int
    step: int
    members: tuple[Member, ...]
    rules: Rules
    last_replaced: int | None
    n_replaced: int
    seed: int
    n_bad: int

    def decide(self, rules: Rules | None = None) -> Decision:
        """Decide, by these rules or others."""
        return decide(
            self.rank,
            self.step,
            self.members,
            rules or self.rules,
            self.last_replaced,
            self.n_replaced,
            self.seed,
            self.n_bad,
        )


@dataclass(frozen=True)
class Replayed:
    """A line of a log, read again.

    Attributes:
        check: Inputs of the decision.
        outcome: Parsed line of the log, with the decision as it was made and what followed.
        decision: The decision, made again.
    """

    check: Check
    outcome: Mapping[str, Any]
    decision: Decision


def line_of(check: Check, decision: Decision, event: Event | None) -> str:
    """Return the line of a check, without its end.

    Args:
        check: Inputs of the decision.
        decision: Decision of the rank.
        event: What came of it; None if no weights changed.
    """
    said = {
        **{name: getattr(check, name) for name in _NUMBERS},
        "rules": {key: _plain(value) for key, value in asdict(check.rules).items()},
        "members": [
            [one.rank, one.alive, one.version, one.trained, _plain(one.metric), one.digest.hex()]
            for one in check.members
        ],
        "replace": decision.replace,
        "donors": decision.donors,
        "reason": decision.reason,
        "applied_at": event and event.step,
        "accepted": event is not None and event.is_kept,
        "taken": [
            [one.rank, one.version, one.step, round(one.age_s, 6)]
            for one in (event.donations if event else ())
        ],
    }
    return json.dumps(said, separators=(",", ":"), allow_nan=False)


def replay(path: str | Path, rules: Rules | None = None) -> Iterator[Replayed]:
    """Decide all checks of a log again: to see that they were made so, or what other rules would have decided.

    Args:
        path: Path of the log.
        rules: Rules used instead of those of the log.

    Yields:
        Each check, with the decision.

    Raises:
        ConfigError: a line is malformed; the text has its number.
    """
    with Path(path).open("rb") as file:
        number = 0
        while line := file.readline(_MAX_LINE_BYTES):
            number += 1
            try:
                outcome = json.loads(line)
                check = _check_of(outcome)
                yield Replayed(check, outcome, check.decide(rules))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                raise ConfigError(f"line {number} of {path} is no check of a rank: {error}") from error


def _check_of(said: Mapping[str, Any]) -> Check:
    given = said["rules"]
    rules = Rules(
        **{
            **given,
            "threshold": _number(given["threshold"]),
            "age_range": tuple(given["age_range"]),
        }
    )
    members = tuple(
        Member(rank, alive, version, trained, _number(metric), bytes.fromhex(digest))
        for rank, alive, version, trained, metric, digest in said["members"]
    )
    return Check(members=members, rules=rules, **{name: said[name] for name in _NUMBERS})


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
