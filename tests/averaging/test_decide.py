"""Which ranks are replaced, and by what: the invariants of `decide`, for any board."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from softs_fast.averaging import Decision, Member, Rules, decide
from softs_fast.averaging.decide import n_worst
from softs_fast.errors import ConfigError

STRATEGIES = ["mean", "weighted_mean", "best_only", "reset_weights"]
MODES = ["worst_ratio", "threshold", "age"]

# Mostly what makes a rank a donor, so that most situations end with a replacement.
any_metric = st.one_of(*[st.integers(-3, 3).map(float)] * 5, st.floats(), st.none())


@st.composite
def members(draw: Any, metrics: Any = any_metric) -> list[Member]:
    n = draw(st.integers(2, 8))
    return [
        Member(
            rank=rank,
            alive=draw(st.sampled_from([True] * 5 + [False])),
            version=draw(st.sampled_from([1, 2, 3, 4, 5, 0])),
            trained=draw(st.integers(0, 30)),
            metric=draw(metrics),
            digest=draw(st.sampled_from([b"a"] * 5 + [b"b"])),
        )
        for rank in draw(st.permutations(range(n)))
    ]


@st.composite
def any_rules(draw: Any) -> Rules:
    return Rules(
        every=draw(st.sampled_from([1, 2])),
        mode=draw(st.sampled_from(MODES)),
        strategy=draw(st.sampled_from(STRATEGIES)),
        replace_worst=draw(st.floats(0, 1)),
        threshold=draw(st.sampled_from([0, 1, 2, 3, math.inf])),
        age_range=(draw(st.integers(0, 5)), draw(st.integers(5, 10))),
        donor_share=draw(st.sampled_from([1.0, 0.5, 0.1])),
        burn_in=draw(st.sampled_from([0, 3, 6])),
        cooldown=draw(st.sampled_from([0, 3, 6])),
        patience=draw(st.sampled_from([1, 1, 3])),
    )


@st.composite
def situations(draw: Any) -> tuple[Any, ...]:
    """The arguments of `decide`."""
    board = draw(members())
    step = draw(st.integers(10, 30))
    replaced_at = draw(st.one_of(st.none(), st.integers(0, step)))
    # Mostly the rank that has the lowest metric.
    known = [member for member in board if member.metric is not None]
    worst = min(known, key=score).rank if known else 0
    me = draw(st.sampled_from([worst, worst, *(member.rank for member in board)]))
    return (
        me,
        step,
        board,
        draw(any_rules()),
        replaced_at,
        draw(st.integers(0, 3)),
        draw(st.integers()),
        draw(st.integers(0, 4)),
    )


def score(member: Member) -> float:
    assert member.metric is not None
    return -math.inf if math.isnan(member.metric) else member.metric


def board_of(*metrics: float | None, trained: int = 100) -> list[Member]:
    return [Member(rank, True, 1, trained, metric, b"") for rank, metric in enumerate(metrics)]


def ask(me: int, board: list[Member], step: int = 0, **rules: Any) -> Decision:
    return decide(me, step, board, Rules(**{"every": 1, **rules}), None, 0, seed=0)


@settings(max_examples=300)
@given(situations())
def test_donors_are_fit_and_weights_add_up(situation: tuple[Any, ...]) -> None:
    me, _, board, rules, *_ = situation
    decision = decide(*situation)
    assert decision.reason
    if not decision.replace:
        assert decision.donors == ()
        return
    by_rank = {member.rank: member for member in board}
    own = by_rank[me]
    if rules.strategy == "reset_weights":
        assert decision.donors == ()
        return
    ranks = [rank for rank, _ in decision.donors]
    weights = [weight for _, weight in decision.donors]
    assert me not in ranks
    assert ranks == sorted(set(ranks))
    assert all(math.isfinite(weight) and weight > 0 for weight in weights)
    assert abs(math.fsum(weights) - 1) < 1e-12
    assert len(ranks) == 1 or rules.strategy != "best_only"
    for rank in ranks:
        donor = by_rank[rank]
        assert donor.alive
        assert donor.version > 0
        assert donor.digest == own.digest
        assert donor.trained >= rules.burn_in
        if rules.mode != "age" or rules.strategy in ("weighted_mean", "best_only"):
            assert donor.metric is not None
            assert math.isfinite(donor.metric)
        if rules.mode != "age":
            assert score(donor) > score(own)


@given(situations(), st.randoms())
def test_the_order_of_the_members_does_not_matter(situation: tuple[Any, ...], random: Any) -> None:
    me, step, board, *rest = situation
    shuffled = list(board)
    random.shuffle(shuffled)
    assert decide(me, step, board, *rest) == decide(me, step, shuffled, *rest)


@settings(max_examples=300)
@given(situations())
def test_cadence_cooldown_and_burn_in_hold(situation: tuple[Any, ...]) -> None:
    me, step, board, rules, last_replaced, *_ = situation
    if decide(*situation).replace:
        assert step % rules.every == 0
        assert last_replaced is None or step - last_replaced >= rules.cooldown
        assert next(member.trained for member in board if member.rank == me) >= rules.burn_in


@given(situations(), st.floats(allow_nan=False))
def test_a_better_metric_of_its_own_never_leads_to_a_replacement(
    situation: tuple[Any, ...], better: float
) -> None:
    me, step, board, *rest = situation
    own = next(member for member in board if member.rank == me)
    assume(own.metric is not None and better > score(own))
    improved = [replace(member, metric=better) if member is own else member for member in board]
    if not decide(me, step, board, *rest).replace:
        assert not decide(me, step, improved, *rest).replace


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=12, unique=True), st.floats(0, 1), st.data())
def test_equal_boards_replace_the_worst_ranks_and_none_of_them_donates(
    metrics: list[float], share: float, data: st.DataObject
) -> None:
    strategy = data.draw(st.sampled_from(STRATEGIES[:3]))
    board = board_of(*metrics)
    n = len(metrics)
    found = {me: ask(me, board, replace_worst=share, strategy=strategy) for me in range(n)}
    replaced = {me for me, decision in found.items() if decision.replace}
    assert len(replaced) == (min(n - 1, max(1, int(n * share))) if share else 0)
    assert replaced == set(sorted(range(n), key=metrics.__getitem__)[: len(replaced)])
    assert not replaced & {rank for me in replaced for rank, _ in found[me].donors}


@given(st.lists(st.integers(-50, 50), min_size=3, max_size=10), st.integers(1, 8), st.integers(-100, 100))
def test_weights_follow_the_metrics_and_not_their_scale(metrics: list[int], a: int, b: int) -> None:
    worst = min(range(len(metrics)), key=lambda rank: (metrics[rank], rank))
    board, scaled = board_of(*map(float, metrics)), board_of(*(float(a * metric + b) for metric in metrics))
    decision = ask(worst, board, strategy="weighted_mean")
    assert ask(worst, scaled, strategy="weighted_mean").donors == decision.donors
    for rank, weight in decision.donors:
        for other, other_weight in decision.donors:
            if metrics[rank] > metrics[other]:
                assert weight > other_weight
            if metrics[rank] == metrics[other]:
                assert weight == other_weight


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("mode", MODES)
def test_one_rank_and_ranks_that_are_equal_keep_their_weights(mode: str, strategy: str) -> None:
    rules = {"mode": mode, "strategy": strategy, "threshold": math.inf, "age_range": (200, 200)}
    assert "no donor" in ask(0, board_of(0.5, trained=300), mode="age", age_range=(200, 200)).reason
    for board in (board_of(0.5), board_of(0.5, 0.5, 0.5)):
        decisions = [ask(me, board, **rules) for me in range(len(board))]
        assert not any(decision.replace for decision in decisions)
        assert all(any(letter.isdigit() for letter in decision.reason) for decision in decisions)


def test_equal_metrics_share_the_mean_of_their_places() -> None:
    decision = ask(0, board_of(0.0, 1.0, 1.0, 2.0), strategy="weighted_mean")
    assert decision.donors == ((1, 0.25), (2, 0.25), (3, 0.5))


@pytest.mark.parametrize(
    ("step", "last_replaced", "trained", "reason"),
    [
        (10, 5, 50, None),
        (11, 5, 50, "step 11 is no multiple of 5"),
        (10, 7, 50, "replaced 3 steps ago; the cooldown is 5 steps"),
        (10, None, 19, "trained 19 steps; the burn-in is 20 steps"),
    ],
)
def test_cadence_cooldown_and_burn_in(
    step: int, last_replaced: int | None, trained: int, reason: str | None
) -> None:
    board = [Member(0, True, 1, trained, 0.0, b""), Member(1, True, 1, 50, 1.0, b"")]
    decision = decide(0, step, board, Rules(every=5, cooldown=5, burn_in=20), last_replaced, 1, seed=0)
    assert decision.replace == (reason is None)
    if reason is not None:
        assert decision.reason == reason


def test_nan_is_the_worst_and_none_takes_no_part() -> None:
    board = board_of(0.1, math.nan, None, 0.9)
    assert ask(1, board).donors == ((0, 0.5), (3, 0.5))
    assert "among the worst 1 of 3" in ask(1, board).reason
    assert not ask(0, board).replace
    assert ask(2, board).reason == "no metric of this rank"
    assert not ask(0, board_of(0.1, -math.inf, 0.2)).replace
    assert ask(0, board_of(0.1, math.inf)).reason.endswith("1 have no finite metric, of 1 others")


def test_the_reason_counts_why_there_is_no_donor() -> None:
    own = Member(0, True, 1, 50, 0.0, b"a")
    board = [
        own,
        Member(1, False, 1, 50, 1.0, b"a"),
        Member(2, True, 0, 50, 1.0, b"a"),
        Member(3, True, 1, 50, 1.0, b"b"),
        Member(4, True, 1, 9, 1.0, b"a"),
        Member(5, True, 1, 50, math.nan, b"a"),
    ]
    reason = ask(0, board, mode="threshold", threshold=0.5, burn_in=10).reason
    assert reason == (
        "metric 0 is below 0.5, but there is no donor: 1 are not alive, 1 have published nothing, "
        "1 have other tensors, 1 have trained less than 10 steps, 1 have no finite metric, of 5 others"
    )


def test_a_threshold_of_the_worst_ratio_replaces_only_while_the_worst_is_below_it() -> None:
    assert ask(0, board_of(0.4, 0.9), threshold=0.5).replace
    assert ask(0, board_of(0.5, 0.9), threshold=0.5).reason == "the worst metric, 0.5, is not below 0.5"


def test_the_lifetime_is_drawn_anew_after_each_replacement() -> None:
    rules = Rules(every=1, mode="age", age_range=(5, 500))

    def lifetime(n_replaced: int) -> int:
        for trained in range(600):
            board = board_of(0.5, 0.5, trained=trained)
            if decide(0, trained, board, rules, None, n_replaced, seed=7).replace:
                return trained - 1
        raise AssertionError("it never ends")

    lifetimes = [lifetime(n) for n in range(5)]
    assert all(5 <= steps <= 500 for steps in lifetimes)
    assert len(set(lifetimes)) == 5


def test_half_of_the_ranks_donate_others_each_time() -> None:
    board = board_of(*(float(rank) for rank in range(21)))
    decisions = [ask(0, board, step, replace_worst=0.01, donor_share=0.5) for step in range(10)]
    assert {len(decision.donors) for decision in decisions} == {10}
    assert len({decision.donors for decision in decisions}) == 10


# The donors of the seed below, in every process, on every machine and with every version of Python.
DONORS = [12, 13, 14, 18, 21, 22, 23, 24, 26, 28, 31, 37]


def test_each_process_decides_the_same() -> None:
    board = [Member(rank, True, 1, 9, rank % 5 / 3, b"x") for rank in range(40)]
    rules = Rules(every=1, strategy="weighted_mean", donor_share=0.3)
    assert [rank for rank, _ in decide(0, 4, board, rules, None, 2, 12345).donors] == DONORS


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"every": 0}, "every is 0"),
        ({"every": 1.5}, r"every is 1\.5"),
        ({"burn_in": -1}, "burn_in is -1"),
        ({"cooldown": -1}, "cooldown is -1"),
        ({"mode": "best"}, 'mode is "best"; known are worst_ratio, threshold, age'),
        ({"strategy": "sum"}, 'strategy is "sum"'),
        ({"replace_worst": 1.1}, r"replace_worst is 1\.1"),
        ({"replace_worst": math.nan}, "replace_worst is nan"),
        ({"donor_share": 0.0}, r"donor_share is 0\.0"),
        ({"threshold": math.nan}, "threshold is nan"),
        ({"mode": "threshold"}, "needs a threshold"),
        ({"age_range": (5, 4)}, r"age_range is \(5, 4\)"),
        ({"age_range": (-1, 4)}, r"age_range is \(-1, 4\)"),
    ],
)
def test_rules_that_make_no_sense_are_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Rules(**arguments)


def test_a_board_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="rank 7 is not among the 2 members"):
        ask(7, board_of(0.1, 0.2))
    with pytest.raises(ConfigError, match="rank 0 is among the members twice"):
        ask(0, [*board_of(0.1, 0.2), *board_of(0.3)])


def test_the_share_counts_ranks() -> None:
    assert [n_worst(n, 0.2) for n in (1, 2, 4, 5, 10, 11)] == [0, 1, 1, 1, 2, 2]
    assert n_worst(10, 0.0) == 0
    assert n_worst(10, 1.0) == 9


def test_a_metric_must_be_bad_in_checks_in_a_row() -> None:
    rules = Rules(every=1, patience=3, strategy="best_only")

    def after(n_bad: int, metric: float, **named: Any) -> Decision:
        return decide(0, 1, board_of(metric, 0.5, 0.9), rules, None, 0, seed=0, n_bad=n_bad, **named)

    said = [(one.replace, one.n_bad) for one in (after(n_bad, 0.1) for n_bad in range(4))]
    assert said == [(False, 1), (False, 2), (True, 3), (True, 4)]
    assert after(1, 0.1).reason == "metric 0.1 is among the worst 1 of 3, for 2 of 3 checks in a row"
    assert (after(2, 0.7).replace, after(2, 0.7).n_bad) == (False, 0), "one good metric begins anew"
    assert decide(0, 3, board_of(0.1, 0.5), Rules(every=2), None, 0, 0, n_bad=2).n_bad == 2, "no check"
    alone = decide(0, 1, board_of(0.1, 0.1), rules, None, 0, 0, n_bad=2)
    assert (alone.replace, alone.n_bad) == (False, 3), "no donor"
    by_age = Rules(every=1, patience=3, mode="age", age_range=(0, 0))
    assert decide(0, 1, board_of(0.1, 0.5), by_age, None, 0, 0).replace
