"""Which checkpoints go once another one is sealed, from names alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softs_fast.job.checkpoints import Checkpoints
from softs_fast.job.retention import name_of, outdated, partial_name, steps_in

ALL_GO = Checkpoints("ckpt", every=10).stays
STEPS = st.sets(st.integers(1, 10**9), min_size=1)


def test_steps_are_told_from_all_else_and_come_newest_first() -> None:
    names = ["step-00000050", "step-100000000", "step-00000400", "step-x", ".trash-step-00000001", "step-"]
    names += ["step-60", "step-0000000\u0667", "00000070"]
    assert steps_in([*names, partial_name(60, "f00"), ".lock", "notes"]) == [100_000_000, 400, 50]
    assert steps_in(map(name_of, (7, 123_456_789))) == [123_456_789, 7]


@given(STEPS, st.integers(1, 5), st.data())
def test_the_newest_whole_ones_stay(steps: set[int], keep: int, data: st.DataObject) -> None:
    sealed = data.draw(st.sampled_from(sorted(steps)))
    damaged = {name_of(one) for one in data.draw(st.sets(st.sampled_from(sorted(steps)))) if one != sealed}
    names = {name_of(one) for one in steps}
    left = names - outdated(names, sealed, keep, damaged, ALL_GO)
    assert name_of(sealed) in left
    assert not left & damaged
    whole = [one for one in steps_in(names - damaged) if one <= sealed]
    # Those of later steps are not of this run.
    later = {name_of(one) for one in steps if one > sealed} - damaged
    assert left == {name_of(one) for one in whole[:keep]} | later


def test_those_of_each_so_many_steps_stay_for_ever() -> None:
    names = {name_of(step) for step in range(10, 80, 10)}
    stays = Checkpoints("ckpt", every=10, keep_every=30).stays
    assert steps_in(names - outdated(names, 70, 2, (), stays)) == [70, 60, 30]
    # A damaged one is of no use to a reader.
    assert steps_in(names - outdated(names, 70, 2, {name_of(30)}, stays)) == [70, 60]


@pytest.mark.parametrize(
    ("name", "is_outdated"),
    [
        (partial_name(40, "dead"), True),
        (partial_name(50, "f00"), True),
        (partial_name(100, "f00"), False),
        (".trash-step-00000100", True),
        (".lock", False),
        ("notes", False),
    ],
)
def test_what_killed_processes_have_left_goes_and_what_others_may_be_writing_stays(
    name: str, is_outdated: bool
) -> None:
    assert (name in outdated({name, name_of(50)}, 50, 1, (), ALL_GO)) is is_outdated
