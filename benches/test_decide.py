"""One decision among many ranks, by one that is replaced: `pytest benches/test_decide.py --benchmark-only`."""

from __future__ import annotations

import random
from typing import Any

import pytest

from softs_fast.averaging import Member, Rules, decide

RULES = {
    "mean": Rules(),
    "weighted": Rules(strategy="weighted_mean"),
    "half of the donors": Rules(strategy="weighted_mean", donor_share=0.5),
    "threshold": Rules(mode="threshold", threshold=0.5),
}


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("n_ranks", [4, 64, 1_000])
def test_decide(benchmark: Any, n_ranks: int, rules: str) -> None:
    chance = random.Random(0)
    board = [Member(rank, True, 1, 1_000, chance.random(), b"") for rank in range(n_ranks)]
    worst = min(board, key=lambda member: member.metric or 0.0).rank
    benchmark.group = f"{n_ranks} ranks"
    decision = benchmark(decide, worst, 100, board, RULES[rules], None, 0, 1)
    assert decision.replace
