"""Aggregates of a round: which are allowed, and how many pushes they leave out."""

from __future__ import annotations

from typing import Any

import pytest
from driven_run import DrivenRun

from softs_fast.errors import ConfigError
from softs_fast.paramserver.rounds import events
from softs_fast.paramserver.rounds.aggregation import trim_of
from softs_fast.paramserver.rounds.options import RunOptions


@pytest.mark.parametrize(
    ("aggregate", "n", "trim"),
    [
        ("mean", 5, None),
        ("median", 1, 0),
        ("median", 2, 0),
        ("median", 3, 1),
        ("median", 4, 1),
        ("median", 5, 2),
        ("trimmed", 9, 2),
        ("trimmed", 5, 2),
        ("trimmed", 4, 1),
        ("trimmed", 1, 0),
    ],
)
def test_how_many_are_left_out(aggregate: Any, n: int, trim: int | None) -> None:
    assert trim_of(aggregate, 2, n) == trim


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"aggregate": "mode"}, "need mean, median or trimmed"),
        ({"aggregate": "median", "mode": "ssp"}, "needs rounds, and the mode is ssp"),
        ({"aggregate": "trimmed", "mode": "async"}, "use the mode bsp"),
        ({"aggregate": "median", "quorum": 2}, "3 pushes in a round; the quorum is 2: raise the quorum"),
        ({"aggregate": "trimmed", "trim": 2, "quorum": 4}, "5 pushes in a round; the quorum is 4"),
        ({"aggregate": "trimmed", "trim": 0, "quorum": 4}, "trim 1 or more"),
    ],
)
def test_what_would_protect_from_nothing_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        RunOptions(world=6, rounds=1, **options)


@pytest.mark.parametrize(("aggregate", "trim"), [("mean", None), ("median", 1), ("trimmed", 1)])
def test_the_step_is_told(aggregate: str, trim: int | None) -> None:
    run = DrivenRun(world=4, quorum=4, aggregate=aggregate)
    run.join(*"abcd")
    for worker in "abcd":
        run.push(worker)
    assert run.one(events.Apply).trim == trim
