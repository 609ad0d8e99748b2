"""Runs that end at any call, and go on from their journals: each element is trained as often as it has to be."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from counting_flow import N_ITEMS, Killed, Plan, make_flow, role, some_plan

import softs_fast.dataflow as df
from softs_fast.dataflow.journal import saves
from softs_fast.dataflow.journal.folder import JournalFolder
from softs_fast.dataflow.master.rows.made import MadeGroup
from softs_fast.dataflow.process.state import checkpoints


def run(plan: Plan, folder: Path | None, numbers: list[tuple[int, bool]]) -> dict[str, list[int]]:
    """Run until the source ends; returns how often each role was trained with each element."""
    with make_flow(plan, folder) as flow:
        for step in flow.steps():
            numbers.append((step.number, step.repeated))
        return {name: counts(flow, name) for name in ("first", "second")}


def counts(flow: df.Flow, name: str) -> list[int]:
    found: list[int] = flow.role(role(flow, name)).counts.n.tolist()
    return found


@pytest.fixture
def quick_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints as single files that are not synced: other tests are about those."""

    def save(name: str, one: df.Role, folder: Path, step: int, group: object) -> None:
        (folder / name / f"step-{step}").mkdir(parents=True)
        torch.save(one.counts.state_dict() if name != "maker" else {}, folder / name / "counts.pt")

    def load(name: str, one: df.Role, folder: Path, group: object) -> int:
        if name != "maker":
            one.counts.load_state_dict(torch.load(folder / name / "counts.pt"))
        return 0

    monkeypatch.setattr(checkpoints, "save", save)
    monkeypatch.setattr(checkpoints, "load", load)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class Saved:
    """What the last save that counts has of rows: per folder what was made, the flow's plan, and how the groups stand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: Sequence[MadeGroup] = ()
        self.n_used, self.order = 0, []
        self.n_kept, self.ahead = 0, 0
        begun: list[Sequence[MadeGroup]] = []
        real_made, real_commit = saves.made_groups, JournalFolder.commit

        def made_groups(table: Any) -> list[MadeGroup]:
            begun.append(real_made(table))
            return list(begun[-1])

        def commit(journal: JournalFolder, partial: Path, save: Any) -> None:
            real_commit(journal, partial, save)
            self.made = begun[-1]
            self.n_used = save.rows.partitions["train"].used
            self.order = [group.first_id for group in save.groups]
            self.ahead = self.plan.ahead

        monkeypatch.setattr(saves, "made_groups", made_groups)
        monkeypatch.setattr(JournalFolder, "commit", commit)

    def kept(self, plan: Plan, per_step: int) -> set[tuple[str, int]]:
        """Return functions and first rows of groups that a flow of a plan does not make again."""
        found = set()
        self.plan = plan
        for number, first_id in enumerate(self.order[: (plan.ahead + 1) * per_step]):
            # With less `ahead` than before, some are too old. The window is the same.
            last_step = (self.n_used + number + plan.window - 1) // per_step
            for one in self.made:
                bound = plan.ahead + -(-(plan.window - 1) // per_step)
                is_recent = plan.ahead >= self.ahead or last_step - one.version <= bound
                if one.first_id == first_id and is_recent:
                    found |= {(name, first_id) for name in one.done if name.startswith("maker.")}
        self.n_kept += len(found)
        return found


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> Saved:
    return Saved(monkeypatch)


@pytest.mark.usefixtures("quick_files")
@pytest.mark.parametrize("seed", range(6))
def test_each_element_is_trained_exactly_as_often_as_without_a_death(
    seed: int, saved: Saved, tmp_path: Path
) -> None:
    check(seed, tmp_path, saved)
    # Trainers of three plans take all that is made, before each save.
    assert saved.n_kept > 0 or not some_plan(seed).ahead or seed in (0, 4, 8)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("quick_files")
@pytest.mark.parametrize("part", range(20))
def test_many_plans(part: int, saved: Saved, tmp_path: Path) -> None:
    n_repeated = sum(check(seed, tmp_path / str(seed), saved) for seed in range(100 + part, 500, 20))
    assert n_repeated > 5
    assert saved.n_kept > 20


def check(seed: int, folder: Path, saved: Saved) -> int:
    """Run a plan with deaths; returns how many steps were yielded again."""
    plan = some_plan(seed)
    rng = random.Random(seed)
    expected = run(plan, None, [])
    rest = [item for item in range(N_ITEMS) if not plan.drops or item % plan.drops != 3]
    for name, found in expected.items():
        wanted = plan.reuse[name] * plan.group
        assert [found[item] for item in rest] == [wanted] * len(rest)
        assert sum(found) == wanted * len(rest)
    numbers: list[tuple[int, bool]] = []
    n_deaths = 0
    saved.made, saved.order = (), []
    while True:
        # Later runs get longer, so that the whole ends.
        if plan.window == 1:
            # With fewer slots, groups of a save wait over later saves.
            plan.ahead = rng.randint(0, plan.max_age)
        plan.calls_left = rng.randrange(4, 100 + 40 * n_deaths)
        plan.made.clear()
        # What is trained with is made once, by this run or the one before.
        kept = saved.kept(plan, plan.rows["first"] // plan.group)
        try:
            found = run(plan, folder, numbers)
        except Killed:
            n_deaths += 1
            assert not kept & set(plan.made), plan
            continue
        assert not kept & set(plan.made), plan
        assert found == expected, plan
        return check_numbers(numbers)


def check_numbers(numbers: list[tuple[int, bool]]) -> int:
    """Each step is there; one that was there before says so; returns how many were."""
    seen: set[int] = set()
    for number, is_repeated in numbers:
        assert is_repeated == (number in seen)
        assert number == 1 or number - 1 in seen
        seen.add(number)
    return sum(is_repeated for _, is_repeated in numbers)


@pytest.mark.usefixtures("quick_files")
def test_groups_that_wait_for_slots_are_in_the_next_save(tmp_path: Path) -> None:
    rows = {"make": 1, "first": 2, "second": 2}
    plan = Plan(0, 1, 2, 2, 1, rows, {"first": 1, "second": 1}, 1, 0)
    found: list[list[int]] = []
    # Six slots, then two: four groups of the save of step 2 wait, two of them still in that of step 3.
    for n_steps, plan.ahead in ((2, 2), (3, 0), (None, 0)):
        with make_flow(plan, tmp_path / "j") as flow:
            for _ in flow.steps(n_steps):
                pass
            found = [counts(flow, name) for name in ("first", "second")]
    assert found == [[1] * N_ITEMS] * 2
