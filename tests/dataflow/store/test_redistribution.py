"""Plans of moves: all arrive, nothing is sent twice, and the numbers of a plan are those of its transfers."""

from __future__ import annotations

import random
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from softs_fast.dataflow.store import RedistributionPlan, Redistributor, RowsToMove
from softs_fast.errors import ConfigError, FlowError

Case = tuple[dict[int, int], dict[str, Any], list[list[int]]]


def random_case(chance: random.Random) -> Case:
    """Workers on nodes, rows with any holders, and ranks of the next call."""
    n_workers, n_nodes = chance.randrange(2, 10), chance.randrange(1, 5)
    nodes = {worker: chance.randrange(n_nodes) * 7 for worker in range(n_workers)}
    group = chance.randrange(1, 4)
    ids = list(range(100, 100 + group * chance.randrange(0, 12)))
    columns = ["seq", "logp", "value"][: chance.randrange(1, 4)]
    largest = chance.choice([1, 100, 1 << 20])
    n_bytes = {column: [chance.randrange(0, largest + 1) for _ in ids] for column in columns}
    makers = [chance.sample(range(n_workers), chance.randrange(1, min(3, n_workers) + 1)) for _ in range(4)]
    holders = {column: [chance.choice(makers) for _ in ids] for column in columns}
    tokens = None if chance.random() < 0.3 else [chance.randrange(1, 50) for _ in ids]
    members = chance.sample(range(n_workers), chance.randrange(1, n_workers + 1))
    n_ranks = chance.randrange(1, len(members) + 1)
    targets: list[list[int]] = [members[rank::n_ranks] for rank in range(n_ranks)]
    rows = {"ids": ids, "n_bytes": n_bytes, "holders": holders, "tokens": tokens, "group": group}
    return nodes, rows, targets


def run(nodes: dict[int, int], rows: dict[str, Any], targets: list[list[int]]) -> RedistributionPlan:
    """Make a plan and carry it out on sets; check all that holds of any plan."""
    plan = Redistributor(nodes).plan(RowsToMove.of(**rows), targets)
    size = {
        (column, row_id): n
        for column in rows["n_bytes"]
        for row_id, n in zip(rows["ids"], rows["n_bytes"][column], strict=True)
    }
    holds: dict[int, set[tuple[str, int]]] = {worker: set() for worker in nodes}
    for column in rows["holders"]:
        for row_id, workers in zip(rows["ids"], rows["holders"][column], strict=True):
            for worker in workers:
                holds[worker].add((column, row_id))
    on_node: dict[int, set[tuple[str, int]]] = {node: set() for node in nodes.values()}
    for worker, values in holds.items():
        on_node[nodes[worker]] |= values
    # Slices are whole groups, in the order of the call, and each row is in one of them.
    assert sorted(row_id for one in plan.slices for row_id in one.tolist()) == rows["ids"]
    for one in plan.slices:
        assert one.tolist() == sorted(one.tolist())
        assert len({(row_id - 100) // rows["group"] for row_id in one.tolist()}) * rows["group"] == len(one)
    arrived: dict[int, set[tuple[str, int]]] = {worker: set() for worker in nodes}
    for one in plan.pulls:
        assert nodes[one.target] != nodes[one.source]
        values = {(one.column, row_id) for row_id in one.ids.tolist()}
        assert len(values) == len(one.ids)
        assert values <= holds[one.source]
        # The node did not have it, and gets it once.
        assert not values & on_node[nodes[one.target]]
        on_node[nodes[one.target]] |= values
        arrived[one.target] |= values
        assert one.n_bytes == sum(size[value] for value in values)
    for worker, values in arrived.items():
        holds[worker] |= values
    has = {worker: set(values) for worker, values in holds.items()}
    for one in plan.reads:
        assert one.target != one.source
        assert nodes[one.source] == nodes[one.target]
        values = {(one.column, row_id) for row_id in one.ids.tolist()}
        assert values <= holds[one.source]
        assert not values & has[one.target]
        has[one.target] |= values
    for rank, mine in zip(targets, plan.slices, strict=True):
        for worker in rank:
            assert {(column, row_id) for column in rows["n_bytes"] for row_id in mine.tolist()} <= has[worker]
    assert plan.n_bytes == plan.least_bytes
    return plan


@pytest.mark.parametrize("block", range(3))
def test_all_rows_arrive_once(block: int) -> None:
    """420 random cases."""
    chance = random.Random(block)
    for _ in range(140):
        run(*random_case(chance))


def test_no_other_names_of_slices_need_fewer_bytes() -> None:
    for seed in range(60):
        check_other_names(random.Random(500 + seed))


def check_other_names(chance: random.Random) -> None:
    nodes, rows, targets = random_case(chance)
    targets = targets[:5]
    plan = run(nodes, rows, targets)
    at = {row_id: i for i, row_id in enumerate(rows["ids"])}

    def missing(rank: list[int], mine: np.ndarray) -> int:
        return sum(
            rows["n_bytes"][column][at[row_id]]
            for column in rows["n_bytes"]
            for row_id in mine.tolist()
            for node in {nodes[worker] for worker in rank}
            if node not in {nodes[worker] for worker in rows["holders"][column][at[row_id]]}
        )

    least = min(
        sum(missing(rank, mine) for rank, mine in zip(targets, order, strict=True))
        for order in permutations(plan.slices)
    )
    assert plan.n_bytes == least


def test_what_is_equal_between_nodes_is_decided_inside() -> None:
    rows = {"ids": [100, 101], "n_bytes": {"seq": [50, 50]}, "holders": {"seq": [[1], [0]]}, "group": 1}
    plan = run({0: 0, 1: 0}, rows, [[0], [1]])
    assert [one.tolist() for one in plan.slices] == [[101], [100]]
    assert (plan.pulls, plan.reads) == ((), ())


def test_each_node_gets_a_row_once_and_its_workers_read_it_there() -> None:
    rows = {"ids": [100], "n_bytes": {"seq": [80]}, "holders": {"seq": [[0]]}, "group": 1}
    nodes = {0: 0, 1: 0, 2: 1, 3: 1, 4: 2}
    plan = Redistributor(nodes).plan(RowsToMove.of(**rows), [[1, 2, 3, 4]])
    assert [(one.source, one.target) for one in plan.pulls] == [(0, 2), (0, 4)]
    assert [(one.source, one.target, one.n_bytes) for one in plan.reads] == [(0, 1, 80), (2, 3, 80)]
    assert plan.explain() == (
        "slices: 1 rows; 1 tokens\n"
        "between nodes: 160 bytes in 2 pulls; least possible 160\n"
        "inside nodes: 160 bytes in 2 reads"
    )


def test_the_same_input_gives_the_same_plan() -> None:
    nodes, rows, targets = random_case(random.Random(17))
    plans = [run(nodes, rows, targets) for _ in range(2)]
    assert plans[0].explain() == plans[1].explain()
    first, second = (
        [(one.source, one.target, one.ids.tolist()) for one in (*plan.pulls, *plan.reads)] for plan in plans
    )
    assert first == second


def test_impossible_input_is_refused() -> None:
    plans = Redistributor({0: 0, 1: 1})
    good: dict[str, Any] = {"ids": [5, 6], "n_bytes": {"seq": [8, 8]}, "holders": {"seq": [[0], [1]]}}

    def refused(
        why: str, targets: list[list[int]], kind: type[Exception] = ConfigError, **changes: Any
    ) -> None:
        with pytest.raises(kind, match=why):
            plans.plan(RowsToMove.of(**{**good, **changes}), targets)

    refused("0 ranks have", [])
    refused(r"2 ranks have \[0, 1\] workers", [[0], []])
    refused("a worker is in two ranks", [[0], [0]])
    refused(r"workers \[7\] have no node; nodes are known of \[0, 1\]", [[7]])
    refused(r"workers \[9\] have no node", [[0]], holders={"seq": [[0], [9]]})
    refused("row 6 has no holder of column 'seq'", [[0]], FlowError, holders={"seq": [[0], []]})
    refused("bytes of a row are -1 to 8", [[0]], n_bytes={"seq": [8, -1]})
    refused("tokens of a row are -4 to 1", [[0]], tokens=[-4, 1])
    refused("need less than 2\\^46", [[0]], n_bytes={"seq": [1 << 45, 1 << 45]})
    refused("2 rows are not whole groups of 3", [[0]], group=3)
    refused("2 rows, but columns or tokens of", [[0]], tokens=[1, 2, 3])
    refused(r"columns with bytes are \['seq'\], with holders \['x'\]", [[0]], holders={"x": [[0], [1]]})
    assert plans.plan(RowsToMove.of(**good), [[0], [1]]).n_bytes == 0
