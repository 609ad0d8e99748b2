"""Rows with None, and the longest value of a call: equal in one process and in several, and after a resume."""

from __future__ import annotations

from pathlib import Path

import none_flow
import pytest
from flow_processes import in_meeting
from flow_threads import in_threads
from none_flow import answer_of
from small_flow import summary

import softs_fast.dataflow as df


def test_roles_of_one_worker_have_the_bits_of_one_process() -> None:
    expected = summary(none_flow.make_flow(), 3)
    flow, _ = in_threads(none_flow.make_flow)
    assert summary(flow, 3) == expected
    numbers = [one for *_, one in expected[0][2] if one]
    assert [one["longest points"] for one in numbers] == [0]


@pytest.mark.parametrize("layout", ["dp2", "dp3"])
def test_ranks_pad_to_one_length_that_is_the_one_of_one_process(layout: str) -> None:
    flow, workers = in_meeting("none_flow", "make_flow", layout=layout)
    steps = summary(flow, 3)
    assert not workers.killed
    alone = summary(none_flow.make_flow(), 3)
    for (_, _, calls), (_, _, others) in zip(steps, alone, strict=True):
        [(ids, numbers)] = [(ids, one) for name, ids, _, one in calls if name == "actor.train"]
        [other] = [one for name, _, _, one in others if name == "actor.train"]
        lengths = [len(one) for one in map(answer_of, ids) if one is not None]
        assert numbers["longest answer"] == max(lengths)
        # Means over ranks: some have shorter rows, and all are told the same length.
        assert {k: v for k, v in numbers.items() if "longest" in k or k == "sum"} == {
            k: v for k, v in other.items() if "longest" in k or k == "sum"
        }
    assert any(one["own"] < one["longest answer"] for _, _, calls in steps for *_, one in calls if one)


def test_rows_with_none_are_in_common_saves(tmp_path: Path) -> None:
    def begin() -> df.Flow:
        return none_flow.make_flow(journal=str(tmp_path), max_age=1)

    with begin() as flow:
        # The generation goes on ahead of training, and the save has what it made.
        list(flow.steps(2))
    again = begin()
    with again:
        kept = [row_id for row_id in range(24) if "answer" in again._session.runner.held.columns(row_id)]
        assert {answer_of(row_id) is None for row_id in kept} == {False, True}
        assert list(map(type, again.values(kept, "answer"))) == [type(answer_of(row_id)) for row_id in kept]
        list(again.steps(5))
        gen = again.role(next(one for one in again.declaration.roles if one.name == "gen"))
        assert gen.generated
        assert not set(gen.generated) & set(kept)


def test_columns_without_a_single_byte_are_counted() -> None:
    for flow in (
        none_flow.make_flow(max_bytes=1000),
        in_threads(lambda: none_flow.make_flow("dp2", max_bytes=1000))[0],
    ):
        with flow:
            ids = flow.fetch(8)
            calls = [flow.post("gen.generate", ids[i : i + 4]) for i in (0, 4)]
            flow.flush(*calls)
            for call in calls:
                call.result(timeout_s=45)
            assert flow.values(ids, "nothing") == [None] * 8
            # Of a hint 4 bytes, of answers 8 for each number, of a text 2 for each letter.
            answers = [answer_of(row_id) for row_id in ids]
            n_numbers = sum(len(one) for one in answers if one is not None)
            n_letters = sum(row_id % 4 for row_id in ids)
            assert flow.ask("stats")["bytes"] <= 4 * 4 + 8 * n_numbers + 2 * n_letters
