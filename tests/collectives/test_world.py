"""Which ranks go on after a loss: the decision, its message, and the numbers that the ranks have then."""

import json
import random

import pytest

from softs_fast.collectives.world import Decision, World, count_of, decide
from softs_fast.errors import PeerLost

WORLD = World("w", 0, ((0, 2), (1, 3, 4)))


def test_it_waits_for_ranks_that_may_come() -> None:
    assert decide(WORLD, {0: 7}, {1, 2}, is_late=False) is None
    assert decide(WORLD, {}, {0, 1, 2, 3, 4}, is_late=True) is None
    all_here = dict.fromkeys(range(5), 7)
    assert decide(WORLD, all_here, set(), is_late=False) == Decision(frozenset(range(5)), 7, 7)


def test_ranks_that_have_ended_do_not_count_even_if_they_had_come() -> None:
    here = {0: 7, 3: 8, 4: 99}
    assert decide(WORLD, here, {1, 2, 4}, is_late=False) == Decision(frozenset({0, 3}), 7, 8)


def test_late_ranks_are_left_out() -> None:
    assert decide(WORLD, {3: 1}, set(), is_late=True) == Decision(frozenset({3}), 1, 1)


def test_ranks_keep_their_order_and_their_nodes() -> None:
    following = WORLD.of({2, 3, 4})
    assert (following.nodes, following.n_rebuilds) == (((2,), (3, 4)), 1)
    assert following.key != WORLD.key
    topology = following.topology(4)
    assert (topology.rank, topology.nodes, topology.own) == (2, ((0,), (1, 2)), 1)
    assert following.of({4}).topology(4).nodes == ((0,),), "a node without ranks is none"


def test_a_decision_is_the_same_on_all_ranks_that_read_it() -> None:
    chance = random.Random(5)
    for _ in range(200):
        size = chance.randrange(1, 70)
        world = World("w", 3, tuple((rank,) for rank in chance.sample(range(100), size)))
        remaining = frozenset(chance.sample(world.members, chance.randrange(1, size + 1)))
        decision = Decision(remaining, 3, 4)
        assert Decision.parsed(decision.encoded(world), world) == decision


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"[]",
        b"null",
        b'{"remaining": "0", "least": 0, "most": 0}',
        b'{"remaining": "20", "least": 0, "most": 0}',
        b'{"remaining": "-1", "least": 0, "most": 0}',
        b'{"remaining": "1", "least": 2, "most": 1}',
        b'{"remaining": "1", "least": -1, "most": 1}',
        b'{"remaining": "1", "least": "0", "most": 1}',
        json.dumps({"remaining": "1", "least": 0, "most": 1 << 62}).encode(),
        b'{"remaining": 1, "least": 0, "most": 1}',
        b"\xff\xfe",
    ],
)
def test_malformed_decisions_are_refused(message: bytes) -> None:
    with pytest.raises(PeerLost, match="malformed"):
        Decision.parsed(message, WORLD)


def test_malformed_counts_are_none() -> None:
    assert count_of(b"12") == 12
    for message in (None, b"", b"-1", b"1.0", b"9" * 5000, b"%d" % (1 << 62), b"x"):
        assert count_of(message) is None
