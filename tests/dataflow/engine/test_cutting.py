"""Which rows each worker of a role gets: rules that hold for random calls, and the cases of few rows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from parts import Model, place, random_work, work_of

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.ranks import heads_of, ranks_of
from softs_fast.dataflow.engine.cutting import lengths_of, parts_of
from softs_fast.records import replace

LAYOUTS = {"dp2": 2, "dp3 tp2": 6, "pp2 dp2 cp2": 8, "tp2": 2, "dp5": 5}


def call_of(layout: str, *, rows: int = 48, method: str = "read", **arguments: Any) -> df.MFCDef:
    role = df.place(Model, layout, on=range(LAYOUTS.get(layout, 1)), name="many")
    return df.call(getattr(role, method), "x, i", rows=rows, interface=df.Interface.INFERENCE, **arguments)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_row_is_data_of_one_rank_and_the_same_for_its_peers(layout: str) -> None:
    for seed in range(60):
        check_rules(np.random.default_rng(seed), call_of(layout))


def check_rules(chance: np.random.Generator, call: df.MFCDef) -> None:
    role, group = call.model_name, int(chance.integers(1, 4))
    assert role is not None
    work = random_work(chance, group, len(role.on), is_ragged=bool(chance.integers(2)))
    parts = parts_of(work, call, group)
    assert parts == parts_of(work, call, group)
    assert set(parts) == set(role.on)
    at = {row_id: i for i, row_id in enumerate(work.ids)}
    data: list[int] = []
    for rank, head in zip(ranks_of(role), heads_of(role), strict=True):
        mine = parts[head]
        assert mine.part is not None
        assert [worker for worker in rank if parts[worker].part.is_head] == [head]  # type: ignore[union-attr]
        assert mine.part.n_all == len(work.ids)
        assert mine.part.n_real in (0, len(mine.ids))
        # That of all ranks; of the numbers there is none.
        assert mine.part.longest == (max(one.parts[0][1][0] for one in work.columns.places["x"]), 0)
        assert mine.part.n_rows == len(mine.ids) >= group
        data += mine.ids[: mine.part.n_real]
        places = [at[row_id] for row_id in mine.ids]
        assert places == sorted(places)
        # Groups are whole.
        assert set(Counter(one // group for one in places).values()) == {group}
        for worker in rank:
            peer = parts[worker]
            assert (peer.ids, peer.columns, peer.tags) == (mine.ids, mine.columns, mine.tags)
            assert peer.columns.places == {k: [v[i] for i in places] for k, v in work.columns.places.items()}
            assert peer.tags == tuple(work.tags[i] for i in places)
            assert (peer.step, peer.use, peer.ends_step, peer.age) == (3, 0, True, 1)
    assert sorted(data) == sorted(work.ids)


def test_a_role_of_one_worker_gets_all_as_it_is() -> None:
    work = work_of([4, 5], [1, 2], [0, 0])
    role = df.place(Model, on=[3])
    call = df.call(role.read, "x, i", rows=2)
    assert parts_of(work, call, 1) == {3: work}
    assert parts_of(work, call, 1)[3].part is None


def test_a_rank_without_a_group_gets_the_first_one_as_padding() -> None:
    parts = parts_of(work_of([4, 5, 6, 7], [5] * 4, [0] * 4), call_of("dp5"), 2)
    slices = [parts[worker].part for worker in range(5)]
    assert [one.n_real for one in slices if one is not None].count(2) == 2
    for one, part in zip(parts.values(), slices, strict=True):
        assert part is not None
        assert (part.n_rows, part.n_all, part.n_ranks) == (2, 4, 5)
        assert one.ids in ([(4, 5)] if not part.n_real else [(4, 5), (6, 7)])


def test_long_rows_are_spread_and_those_of_a_generation_counted() -> None:
    work = work_of(range(8), [90, 1, 1, 1, 1, 1, 1, 90], [9] * 8)
    lengths = np.array([90, 1, 1, 1, 1, 1, 1, 90])
    for method, most in (("read", 93), ("generate", None)):
        call = call_of("dp2") if method == "read" else generate("dp2")
        parts = parts_of(work, call, 1)
        sums = [lengths[list(one.ids)].sum() for one in parts.values()]
        assert (max(sums) == most) if most else [len(one.ids) for one in parts.values()] == [4, 4]
        assert parts[0].ids == (0, 1, 2, 3) or method == "read"
    heavy = work_of(range(4), [90, 30, 30, 30], [9] * 4)
    assert sorted(len(one.ids) for one in parts_of(heavy, call_of("dp2"), 1).values()) == [1, 3]
    assert {len(one.ids) for one in parts_of(heavy, generate("dp2"), 1).values()} == {2}


def generate(layout: str) -> df.MFCDef:
    return df.call(df.place(Model, layout, on=range(LAYOUTS[layout])).generate, "x, i", rows=48)


def test_rows_stay_where_they_are() -> None:
    for holders in ([0] * 4 + [1] * 4, [1] * 4 + [0] * 4):
        parts = parts_of(work_of(range(8), [50] * 8, holders), call_of("dp2"), 2)
        for worker, one in parts.items():
            assert {value.worker for value in one.columns.places["x"]} == {worker}


def test_padded_calls_have_one_number_of_rows_on_all_ranks() -> None:
    call = call_of("dp2", rows=12, uneven="pad")
    for n in (2, 4, 10, 12):
        parts = parts_of(work_of(range(n), list(range(1, n + 1)), [0] * n), call, 2)
        slices = [one.part for one in parts.values()]
        assert {one.n_rows for one in slices if one is not None} == {6}
        assert sum(one.n_real for one in slices if one is not None) == n


def test_lengths_are_those_of_the_longest_value() -> None:
    assert lengths_of([[place(3, 0), place(3, 0)]]) is None
    assert lengths_of([[place(3, 0), place(4, 0)], [place(9, 0), place(2, 0)]]) == [9, 4]
    for kind in ("int", "none"):
        other = replace(work_of([1], [1], [0]).columns.places["i"][0], kind=kind)
        assert lengths_of([[other, place(2, 0)]]) == [0, 2]
