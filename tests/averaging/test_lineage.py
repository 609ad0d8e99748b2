"""The log of all checks, and what other rules would have decided."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from memory_board import MemoryBoard, World

from softs_fast.averaging import Member, Rules, Schedule, SelectiveAveraging, decide, replay
from softs_fast.averaging.lineage import Check, line_of
from softs_fast.errors import ConfigError


def train(folder: Path) -> list[SelectiveAveraging]:
    """Three ranks make ten steps; the metric of rank 2 becomes NaN, and rank 1 refuses its second replacement."""
    world = World()
    refusals = iter([True, False, True, True, True])
    ranks = [
        SelectiveAveraging(
            torch.nn.Linear(2, 2),
            None,
            Rules(every=2, cooldown=1, replace_worst=0.4, strategy="weighted_mean"),
            meet=MemoryBoard(world, rank),
            schedule=Schedule(publish_every=1, max_wait_steps=1, log=folder / f"{rank}.jsonl", seed=5),
            accept=(lambda _: next(refusals)) if rank == 1 else None,
            clock=world.clock,
        )
        for rank in range(3)
    ]
    for step in range(10):
        world.now_s += 1.0
        for rank, metric in zip(ranks, (0.5, 0.1, 0.9 if step < 6 else math.nan), strict=True):
            rank.step(metric)
    for one in ranks:
        one.shutdown()
    return ranks


def test_each_check_has_a_line_that_is_decided_again_the_same(tmp_path: Path) -> None:
    ranks = train(tmp_path)
    outcomes = {}
    for rank in ranks:
        replayed = list(replay(tmp_path / f"{rank.rank}.jsonl"))
        assert len(replayed) == rank.counters["checks"]
        for one in replayed:
            assert one.check.rank == rank.rank
            assert one.decision.replace == one.outcome["replace"]
            assert [list(donor) for donor in one.decision.donors] == one.outcome["donors"]
            assert one.decision.reason == one.outcome["reason"]
        outcomes[rank.rank] = [one.outcome for one in replayed]
    applied = [(one["step"], one["applied_at"], one["accepted"]) for one in outcomes[1] if one["replace"]]
    assert applied[:2] == [(2, 5, True), (6, 9, False)]
    assert [one[0] for one in outcomes[1][0]["taken"]] == [0, 2]
    assert ranks[1].state_dict()["lineage"][0]["step"] == 5
    assert any(one["replace"] for one in outcomes[2]), "NaN is replaced, and JSON can say so"
    assert not any(one["replace"] for one in outcomes[0])


def test_other_rules_may_be_tried_on_a_log(tmp_path: Path) -> None:
    train(tmp_path)
    same = [one.decision.replace for one in replay(tmp_path / "1.jsonl")]
    other = [one.decision.replace for one in replay(tmp_path / "1.jsonl", Rules(every=1, replace_worst=0.0))]
    assert any(same)
    assert not any(other)
    best = [one.decision for one in replay(tmp_path / "1.jsonl", Rules(every=2, strategy="best_only"))]
    assert best[0].donors == ((2, 1.0),)


@pytest.mark.parametrize("metric", [None, 0.5, math.nan, math.inf, -math.inf])
def test_any_board_can_be_written(tmp_path: Path, metric: float | None) -> None:
    members = (Member(0, True, 1, 5, 0.1, b"\x00\xff"), Member(1, False, 2, 6, metric, b""))
    rules = Rules(every=1, mode="threshold", threshold=math.inf, patience=4)
    check = Check(0, 7, members, rules, None, 3, 11, 2)
    line = line_of(check, check.decide(), None)
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    (tmp_path / "log").write_text(line + "\n")
    (found,) = replay(tmp_path / "log")
    assert str(found.check) == str(check), "as text, because NaN is not equal to itself"
    assert found.decision == decide(0, 7, members, rules, None, 3, 11, 2)


@pytest.mark.parametrize(
    "line", ["", "[]", "{}", "3", '{"rules": {}}', "[" * 100_000, '{"rules": {"every": 0}}', "\udcff"]
)
def test_a_line_that_is_no_check_is_named(tmp_path: Path, line: str) -> None:
    train(tmp_path)
    path = tmp_path / "1.jsonl"
    good = path.read_text().splitlines()[0]
    path.write_text(f"{good}\n{line}\n", errors="surrogateescape")
    with pytest.raises(ConfigError, match=r"line 2 of .*1\.jsonl is no check of a rank"):
        list(replay(path))
