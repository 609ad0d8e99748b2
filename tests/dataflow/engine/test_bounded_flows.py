"""Flows with few bytes for their rows: new groups wait, those that are there go on, and each flow gets to its end."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from flow_threads import in_threads
from seeds import noted

import softs_fast.dataflow as df
from softs_fast.dataflow.workers import processes
from softs_fast.errors import ConfigError

#: Rows of a step; bytes that a row has of the source, and with all columns.
ROWS, X_BYTES, ROW_BYTES = 8, 1024, 1024 + 10240 + 8


class Model(df.Role):
    """Makes rows of 10 KiB of 1 KiB, and reads them."""

    def generate(self, rows: df.Rows) -> dict[str, Any]:
        return {"y": rows["x"].repeat(1, 10)}

    def score(self, rows: df.Rows) -> dict[str, Any]:
        return {"score": rows["y"].sum(dim=1)}

    def train(self, rows: df.Rows) -> dict[str, float]:
        return {"sum": float(rows["score"].sum() + rows["y"].mean())}


def numbers(n: int) -> Iterator[dict[str, Any]]:
    for i in range(n):
        yield {"x": torch.full((X_BYTES // 8,), float(i), dtype=torch.float64)}


def make_bounded(max_bytes: int | None = None, group: int = 1) -> df.Flow:
    """Return a flow of eight steps, four of which have slots."""
    gen, scorer = df.place(Model, on=[1], name="gen"), df.place(Model, on=[2], name="scorer")
    calls = [
        df.call(gen.generate, "x -> y", rows=2),
        df.call(scorer.score, "y -> score", rows=2),
        df.call(df.place(Model, name="trainer").train, "y, score", rows=ROWS),
    ]
    return df.Flow(calls, source=numbers(8 * ROWS), max_age=3, group=group, max_bytes=max_bytes, digests=True)


def calls_of(flow: df.Flow) -> tuple[list[Any], int]:
    """Return the calls of a flow, sorted, and the most bytes that its rows have had."""
    most = 0

    def turn(**options: Any) -> bool:
        nonlocal most
        found = fill(**options)
        most = max(most, flow._session.runner.master.rows.n_bytes)
        return found

    with flow:
        fill = flow._session.turn
        flow._session.turn = turn  # type: ignore[method-assign]
        calls = [
            (one.function, one.ids, one.digest, one.numbers) for step in flow.steps() for one in step.calls
        ]
    return sorted(calls), most


@pytest.mark.parametrize("backend", ["threads", "one process"])
def test_new_groups_wait_for_bytes(backend: str) -> None:
    def run(max_bytes: int) -> tuple[list[Any], int]:
        return calls_of(
            in_threads(lambda: make_bounded(max_bytes))[0]
            if backend == "threads"
            else make_bounded(max_bytes)
        )

    expected, most = run(1 << 40)
    limit = ROWS * ROW_BYTES * 3 // 2
    assert most > limit
    assert len({ids for name, ids, *_ in expected if name == "trainer.train"}) == 8
    found, most = run(limit)
    assert found == expected
    assert ROWS * ROW_BYTES <= most <= limit


@pytest.mark.parametrize("max_bytes", [1, ROWS * ROW_BYTES - 1])
def test_bytes_that_never_suffice_for_a_step_end_nothing(max_bytes: int) -> None:
    """The groups of one step come one by one, each when nothing else can run."""
    expected, _ = calls_of(make_bounded(1 << 40))
    found, most = calls_of(in_threads(lambda: make_bounded(max_bytes))[0])
    assert found == expected
    assert most == ROWS * ROW_BYTES


class Learner(df.Role):
    """Trains with what there is."""

    def learn(self, rows: df.Rows) -> None:
        """Nothing is learned."""


def random_flow(seed: int, max_bytes: int | None) -> df.Flow:
    """Return a flow with functions of different numbers of rows, some of which drop groups or train twice."""
    choice = random.Random(seed)
    group, step = choice.choice([1, 2]), choice.choice([2, 4, 6])
    large = choice.choice([1, 64])

    def make(rows: df.Rows) -> dict[str, Any]:
        return {"y": rows["x"].repeat(1, large)}

    def score(rows: df.Rows) -> dict[str, Any]:
        if drops:
            rows.drop([i for i in range(rows.n_rows) if rows.ids[i] // group % 5 == 3], "dull")
        return {"z": rows["y"].sum(dim=1)}

    drops, learner = choice.random() < 0.4, df.place(Learner)
    n_made, n_scored = (choice.choice([1, step // 2, step, 2 * step]) for _ in range(2))
    calls = [
        df.call(make, "x -> y", rows=n_made * group, at_least=choice.choice([None, group])),
        df.call(score, "y -> z", rows=n_scored * group),
        df.call(lambda rows: {"n": float(rows.n_rows)}, "y, z", rows=step * group, name="end"),
        df.call(
            learner.learn,
            "z",
            rows=step * group,
            reuse=choice.choice([1, 2]),
            interface=df.Interface.TRAIN_STEP,
        ),
    ]
    source, max_age = numbers(step * choice.randint(2, 6)), choice.choice([3, 5])
    return df.Flow(calls, source=source, group=group, max_age=max_age, max_bytes=max_bytes)


def test_no_bound_keeps_a_flow_from_its_end() -> None:
    for seed in range(30):
        with noted(seed):
            trained = []
            for max_bytes in (None, 1, 1 << random.Random(seed).randrange(10, 20)):
                with random_flow(seed, max_bytes) as flow:
                    calls = [one for step in flow.steps() for one in step.calls]
                trained.append(
                    {row_id for one in calls if one.function == "Learner.learn" for row_id in one.ids}
                )
                assert not len(flow._session.runner.master.rows)
            assert trained[0] == trained[1] == trained[2]


def test_the_default_is_half_of_the_shared_memory_that_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "bytes_free", lambda: 2 * ROWS * ROW_BYTES + 1)
    flow, _ = in_threads(make_bounded)
    _, most = calls_of(flow)
    assert flow._session.admission.max_bytes == ROWS * ROW_BYTES
    assert most >= ROWS * ROW_BYTES  # the first rows are admitted before their size is known
    assert make_bounded()._session.admission.max_bytes is None


@pytest.mark.parametrize("max_bytes", [0, -1])
def test_a_bound_below_a_byte_is_refused(max_bytes: int) -> None:
    with pytest.raises(ConfigError, match=f"max_bytes {max_bytes}"):
        make_bounded(max_bytes)


def test_a_value_of_the_source_is_stored_once_for_the_rows_of_its_group() -> None:
    flow, _ = in_threads(functools.partial(make_bounded, group=2))
    with flow:
        backend: Any = flow._backend
        ids = flow.fetch(4)
        assert len(backend._store._columns["x"]) == 2
        assert flow._session.runner.master.rows.n_bytes == 2 * X_BYTES
        assert [int(value[0]) for value in flow.values(ids, "x")] == [0, 0, 1, 1]
        assert flow.clear_data_cache(ids[:1]) == 1
        assert len(backend._store._columns["x"]) == 1
        assert [int(value[0]) for value in flow.values(ids[2:], "x")] == [1, 1]
        assert [step.number for step in flow.steps(2)] == [1, 2]
