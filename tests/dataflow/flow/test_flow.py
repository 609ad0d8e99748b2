"""Flows in one process: steps, ages, groups, drops, failures, the rest at the end, types of values, digests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import softs_fast.dataflow as df
from softs_fast.dataflow.engine.results import CallResult
from softs_fast.errors import ConfigError, FlowError
from softs_fast.tensors import RaggedTensor


class Model(df.Role):
    """Writes down what it is asked for."""

    def setup(self, mesh: df.Mesh) -> None:
        self.mesh = mesh
        self.net = torch.nn.Linear(1, 1)
        self.log: list[tuple[str, tuple[int, ...]]] = []

    def generate(self, rows: df.Rows) -> dict[str, Any]:
        self.log.append(("generate", rows.ids))
        return {"text": rows["x"] * 10}

    def score(self, rows: df.Rows) -> dict[str, Any]:
        self.log.append(("score", rows.ids))
        return {"score": rows["text"].sum(dim=1) if rows["text"].ndim > 1 else rows["text"]}

    def train(self, rows: df.Rows) -> dict[str, Any]:
        self.log.append(("train", rows.ids))
        return {"sum": rows["text"].sum(), "age": rows.age, "n": len(rows.ids)}


def numbers(n: int | None = None) -> Iterator[dict[str, Any]]:
    i = 0
    while n is None or i < n:
        yield {"x": torch.tensor(float(i)), "not read": "at all"}
        i += 1


def simple(**arguments: Any) -> tuple[df.Flow, df.Placement, df.Placement]:
    actor = df.place(Model, name="actor")
    gen = df.place(Model, "dp2", on=[1, 2], follows=actor, name="gen")
    calls = [
        df.call(gen.generate, "x -> text", rows=2),
        df.call(actor.train, "text", rows=4, after=[df.publish(gen)]),
    ]
    return df.Flow(calls, **{"source": numbers(), **arguments}), actor, gen


def test_synchronous_steps_use_each_row_once_and_in_order() -> None:
    flow, actor, gen = simple()
    with flow:
        steps = list(flow.steps(3))
        assert [step.number for step in steps] == [1, 2, 3]
        assert [step["actor.train"]["sum"] for step in steps] == [60.0, 220.0, 380.0]
        assert [step.age_max for step in steps] == [0, 0, 0]
        assert [ids for _, ids in flow.role(actor).log] == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11)]
        assert flow.role(gen).log[-1] == ("generate", (10, 11))
        assert flow.role(gen).mesh.size("dp") == 1
        assert str(flow.role(gen).mesh.declared) == "dp2"
        nothing = {"rows": 0, "bytes": 0, "dropped": {}, "restarts": 0, "made_again": 0}
        assert flow.ask("stats") == {"steps": 3, **nothing, "left_out": 0, "not_finite": {}}
    assert {call.function for call in steps[0].calls} == {"gen.generate", "actor.train"}
    names = {"gen.generate: main", "actor.train: main", "actor.train: publish"}
    assert set(steps[0].seconds) == names | {"gen.generate: data_transfer", "actor.train: data_transfer"}
    assert steps[0].waited_s == 0
    assert steps[1].waited_s > 0
    assert "actor.train" in steps[0]
    assert "no_such" not in steps[0]
    assert steps[0].get("no_such") is None
    assert {name: sorted(own) for name, own in steps[0].items()} == {
        "gen.generate": [],
        "actor.train": ["age", "n", "sum"],
    }
    assert len(steps[0]) == 2
    with pytest.raises(KeyError, match="no_such has no call in step 1"):
        steps[0]["no_such"]


def test_rows_are_as_old_as_they_may_be_and_no_older() -> None:
    flow, _, gen = simple(max_age=2)
    assert flow.age_bound == 2
    with flow:
        ages = [step.age_max for step in flow.steps(6)]
        assert ages[0] == 0
        assert 1 <= max(ages) <= 2
        assert max(ids[-1] for _, ids in flow.role(gen).log) < (6 + 3) * 4
    flow, _, _ = simple(max_age=2, ahead=1)
    assert flow.age_bound == 1


def test_rows_of_a_group_stay_together() -> None:
    flow, actor, _ = simple(group=2)
    with flow:
        list(flow.steps(2))
        assert flow.role(actor).log == [("train", (0, 1, 2, 3)), ("train", (4, 5, 6, 7))]
        assert [step["actor.train"]["sum"] for step in flow.steps(1)] == [2 * 40.0 + 2 * 50.0]


def test_a_run_can_be_repeated_bit_by_bit() -> None:
    def digests() -> list[str]:
        flow, _, _ = simple(max_age=1, digests=True)
        with flow:
            return [call.digest for step in flow.steps(4) for call in step.calls]

    first = digests()
    assert first == digests()
    assert len(set(first)) == len(first)
    assert all(len(digest) == 16 for digest in first)


@pytest.mark.parametrize(
    ("uneven", "sizes", "complete"),
    [
        ("short", [4, 4, 2], [True, True, False]),
        ("pad", [4, 4, 4], [True, True, False]),
        ("drop", [4, 4], [True, True]),
    ],
)
def test_the_rest_at_the_end_of_the_source(uneven: Any, sizes: list[int], complete: list[bool]) -> None:
    seen: list[tuple[int, int]] = []

    def train(rows: df.Rows) -> dict[str, float]:
        seen.append((rows.n_rows, sum(rows.is_padding)))
        return {}

    calls = [df.call(double, "x -> y", rows=2), df.call(train, "y", rows=4, uneven=uneven)]
    with df.Flow(calls, source=numbers(10)) as flow:
        steps = list(flow.steps())
        assert flow.ask("stats")["rows"] == 0
    assert [n for n, _ in seen] == sizes
    assert seen[-1][1] == (2 if uneven == "pad" else 0)
    assert [step.is_complete for step in steps][: len(complete)] == complete


def test_what_is_dropped_or_tagged_where_there_is_padding_is_no_data() -> None:
    def filtered(rows: df.Rows) -> dict[str, Any]:
        padding = [place for place, is_padding in enumerate(rows.is_padding) if is_padding]
        for place in range(rows.n_rows):
            rows.tags[place]["place"] = place
        rows.drop(padding)
        rows.fail(padding, "it is no row")
        n_padding.append(len(padding))
        return {"text": rows["x"]}

    n_padding: list[int] = []
    seen: list[tuple[int, Any]] = []
    tell = df.call(
        lambda rows: seen.extend(zip(rows.ids, rows.tags, strict=True)), "text", rows=2, name="tell"
    )
    flow = df.Flow([df.call(filtered, "x -> text", rows=4, uneven="pad"), tell], source=numbers(10))
    with flow:
        steps = list(flow.steps(100))
    assert n_padding == [0, 0, 2]
    assert [step.dropped for step in steps] == [{}] * len(steps)
    assert [(row_id, tags["place"]) for row_id, tags in seen] == [(i, i % 4) for i in range(10)]


@pytest.mark.parametrize(("uneven", "used"), [("short", 10), ("pad", 10), ("drop", 8)])
def test_the_rest_of_a_function_that_makes_columns(uneven: Any, used: int) -> None:
    got: list[float] = []
    calls = [
        df.call(double, "x -> y", rows=4, uneven=uneven),
        df.call(lambda rows: got.extend(rows["y"].tolist()), "y", rows=4, name="end"),
    ]
    with df.Flow(calls, source=numbers(10)) as flow:
        list(flow.steps())
        assert flow.ask("stats")["rows"] == 0
    assert got == [2.0 * i for i in range(used)]


def double(rows: df.Rows) -> dict[str, Tensor]:
    return {"y": rows["x"] * 2}


def test_dropped_groups_are_replaced() -> None:
    def keep_even(rows: df.Rows) -> dict[str, Tensor]:
        odd = (rows["x"] % 2 == 1).nonzero()[:, 0].tolist()
        rows.drop(odd, "odd")
        return {"y": rows["x"]}

    got: list[list[float]] = []

    def train(rows: df.Rows) -> None:
        got.append(rows["y"].tolist())

    calls = [df.call(keep_even, "x -> y", rows=4), df.call(train, "y", rows=4)]
    with df.Flow(calls, source=numbers()) as flow:
        steps = list(flow.steps(3))
        assert flow.ask("stats")["rows"] == 0
    assert got == [[0, 2, 4, 6], [8, 10, 12, 14], [16, 18, 20, 22]]
    assert steps[-1].dropped == {"odd": 11}


def test_failed_rows_are_never_data_and_have_a_budget() -> None:
    def fragile(rows: df.Rows) -> dict[str, Tensor]:
        rows.fail([i for i, x in enumerate(rows["x"]) if x % 4 == 3], "endpoint timed out")
        return {"y": rows["x"]}

    def flow_of(max_failed: int) -> df.Flow:
        calls = [df.call(fragile, "x -> y", rows=2), df.call(train, "y", rows=4)]
        return df.Flow(calls, source=numbers(), max_failed=max_failed)

    got: list[float] = []

    def train(rows: df.Rows) -> None:
        got.extend(rows["y"].tolist())

    with flow_of(3) as flow:
        assert [step.dropped for step in flow.steps(2)] == [{"failed": 1}, {"failed": 2}]
        assert got == [0, 1, 2, 4, 5, 6, 8, 9]
        with pytest.raises(
            FlowError, match="4 groups have failed and max_failed is 3; the last: endpoint timed out"
        ):
            list(flow.steps(10))


def test_an_exception_has_its_traceback_and_its_rows() -> None:
    def broken(rows: df.Rows) -> None:
        raise ZeroDivisionError("no luck")

    calls = [df.call(double, "x -> y", rows=2), df.call(broken, "y", rows=4)]
    with df.Flow(calls, source=numbers()) as flow:
        with pytest.raises(
            FlowError, match=r"broken failed on 4 rows \[0, 1, 2, 3\]: ZeroDivisionError: no luck"
        ) as caught:
            next(flow.steps())
        assert 'raise ZeroDivisionError("no luck")' in str(caught.value)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        with pytest.raises(FlowError, match="no luck"):
            next(flow.steps())


@pytest.mark.parametrize(
    ("result", "complaint"),
    [
        (None, "it did not return y; it returned a NoneType"),
        ({"z": torch.ones(2)}, "it did not return y; it returned z"),
        ({"y": torch.ones(3)}, "column 'y' has 3 rows; expected 2"),
        ({"y": torch.tensor(1.0)}, "column 'y' is a tensor without dimensions"),
        ({"y": [{}, {}]}, "column 'y', row 0 of the batch, has a dict; expected a tensor"),
        ({"y": 3}, "column 'y' is a int"),
        (
            {"y": torch.ones(2), "w": torch.ones(2)},
            "'w', which it returned and is no declared output, is a Tensor; expected a number",
        ),
    ],
)
def test_results_that_are_refused(result: Any, complaint: str) -> None:
    def make(rows: df.Rows) -> Any:
        return result

    calls = [df.call(make, "x -> y", rows=2), df.call(lambda rows: None, "y", rows=2, name="end")]
    with df.Flow(calls, source=numbers()) as flow, pytest.raises(FlowError, match=complaint):
        next(flow.steps())


def test_columns_of_all_types_arrive_as_they_were() -> None:
    items = [
        {
            "image": b"\x00\xff" * i,
            "text": "é" * i,
            "score": 0.5 * i,
            "tokens": torch.arange(i),
            "parts": [torch.ones(i)] * 2,
        }
        for i in range(1, 5)
    ]
    seen: list[df.Rows] = []

    def end(rows: df.Rows) -> None:
        seen.append(rows)

    flow = df.Flow([df.call(end, "image, text, score, tokens, parts", rows=4)], source=items)
    with flow:
        list(flow.steps())
    (rows,) = seen
    assert rows["image"] == [item["image"] for item in items]
    assert rows["text"] == [item["text"] for item in items]
    assert rows["score"] == [0.5, 1.0, 1.5, 2.0]
    assert isinstance(rows["tokens"], RaggedTensor)
    assert rows["tokens"].lengths.tolist() == [1, 2, 3, 4]
    assert [len(parts) for parts in rows["parts"]] == [2, 2, 2, 2]
    assert [tensor.tolist() for tensor in rows.values_of("tokens")] == [
        item["tokens"].tolist() for item in items
    ]


def test_a_function_cannot_change_what_others_see() -> None:
    kept = torch.zeros(2)

    def make(rows: df.Rows) -> dict[str, Tensor]:
        kept.add_(1)
        return {"y": kept}

    def spoil(rows: df.Rows) -> None:
        rows["y"].fill_(7)

    got: list[list[float]] = []
    calls = [
        df.call(make, "x -> y", rows=2),
        df.call(spoil, "y", rows=4),
        df.call(lambda rows: got.append(rows["y"].tolist()), "y", rows=4, name="end"),
    ]
    with df.Flow(calls, source=numbers()) as flow:
        list(flow.steps(1))
    assert got == [[1, 1, 2, 2]]


def test_gradients_may_be_added_up_in_parts_and_rows_used_again() -> None:
    parts: list[tuple[int, bool, int]] = []

    class Learner(df.Role):
        def train(self, rows: df.Rows) -> None:
            parts.append((rows.n_rows, rows.ends_step, rows.use))

    learner = df.place(Learner)
    calls = [df.call(double, "x -> y", rows=2), df.call(learner.train, "y", rows=8, at_least=2)]
    with df.Flow(calls, source=numbers()) as flow:
        list(flow.steps(2))
    assert sum(n for n, _, _ in parts) == 16
    assert len(parts) > 2
    assert [ends for _, ends, _ in parts].count(True) == 2
    parts.clear()
    calls = [df.call(double, "x -> y", rows=2), df.call(learner.train, "y", rows=4, reuse=3)]
    with df.Flow(calls, source=numbers()) as flow:
        list(flow.steps(2))
    assert parts == [(4, use == 2, use) for use in (0, 1, 2)] * 2


def test_a_partition_has_rows_of_its_own() -> None:
    judged: list[list[float]] = []

    def judge(rows: df.Rows) -> dict[str, float]:
        judged.append(rows["x"].tolist())
        return {"mean": float(rows["x"].mean())}

    calls = [
        df.call(lambda rows: None, "x", rows=2, name="train"),
        df.call(judge, "x", rows=2, partition="val"),
    ]
    source = {"train": numbers(), "val": ({"x": torch.tensor(100.0 + i)} for i in range(4))}
    with df.Flow(calls, source=source) as flow:
        next(flow.steps(1))
        assert judged == []
        assert len(flow.fetch(2, partition="val")) == 2
        step = next(flow.steps(1))
        assert judged == [[100.0, 101.0]]
        assert step["judge"] == {"mean": 100.5}


def test_rows_of_another_partition_do_not_keep_a_flow_from_its_end() -> None:
    calls = [
        df.call(lambda rows: None, "x", rows=2, name="train"),
        df.call(lambda rows: None, "x", rows=2, partition="val", name="judge"),
    ]
    with df.Flow(calls, source={"train": numbers(4), "val": numbers()}) as flow:
        flow.fetch(1, partition="val")  # of two that a call needs
        assert [step.number for step in flow.steps()] == [1, 2]


def test_bytes_of_rows_are_bounded() -> None:
    most: list[int] = []

    def end(rows: df.Rows) -> None:
        most.append(flow.ask("stats")["bytes"])

    def large() -> Iterator[dict[str, Any]]:
        while True:
            yield {"x": torch.zeros(250)}

    calls = [df.call(end, "x", rows=2)]
    with df.Flow(calls, source=large(), max_age=3, max_bytes=3000) as flow:
        list(flow.steps(5))
    assert max(most) <= 3000


def test_flows_that_are_refused() -> None:
    calls = [df.call(double, "x -> y", rows=2), df.call(lambda rows: None, "y", rows=2, name="end")]
    with pytest.raises(ConfigError, match="source of partition 'train' is empty"):
        df.Flow(calls, source=[])
    with pytest.raises(ConfigError, match="begins with None; need dicts"):
        df.Flow(calls, source=[None])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="double reads x, which has no producer; there are: y, z"):
        df.Flow(calls, source=[{"z": 1}])
    with pytest.raises(ConfigError, match="max_bytes 0"):
        df.Flow(calls, source=numbers(), max_bytes=0)
    with pytest.raises(ConfigError, match="no function works on partition 'train'"):
        df.Flow([df.call(double, "x", rows=2, partition="val")], source={"val": numbers()})
    actor = df.place(Model, name="actor")
    gen = df.place(Model, follows=actor, name="gen")
    calls = [df.call(gen.generate, "x -> text", rows=2), df.call(actor.train, "text", rows=2)]
    with pytest.raises(ConfigError, match="'gen' follows 'actor', and no call publishes to it"):
        df.Flow(calls, source=numbers())
    with pytest.raises(ConfigError, match="the flow is not open"):
        next(simple()[0].steps())


def test_an_element_of_the_source_that_lacks_a_column_is_named() -> None:
    items = [{"x": torch.ones(1)}, {"z": 3}]
    with (
        df.Flow([df.call(double, "x", rows=2)], source=items) as flow,
        pytest.raises(FlowError, match="an element of the source lacks x; it has z"),
    ):
        next(flow.steps())


def test_a_call_counts_the_rows_that_were_left_when_it_began() -> None:
    """The means of a step are those over its rows, also where another function has dropped some of a call."""

    class Half(df.Role):
        def score(self, rows: df.Rows) -> dict[str, Any]:
            rows.drop([place for place, x in enumerate(rows["x"]) if x % 2], "odd")
            return {"score": rows["x"]}

        def look(self, rows: df.Rows) -> dict[str, Any]:
            return {"z": rows["x"], "mean": rows["x"].mean()}

        def train(self, rows: df.Rows) -> dict[str, Any]:
            return {"mean": rows["z"].mean()}

    actor, ref = df.place(Half, name="actor"), df.place(Half, on=[1], frozen=True, name="ref")
    calls = [
        df.call(actor.score, "x -> score", rows=4),
        df.call(ref.look, "x -> z", rows=4),
        df.call(actor.train, "z, score", rows=4),
    ]
    with df.Flow(calls, source=numbers(24)) as flow:
        steps = list(flow.steps())
    assert [call.ids for call in steps[0].calls if call.function == "ref.look"] == [(0, 2), (4, 6)]
    assert [step["ref.look"] for step in steps] == [step["actor.train"] for step in steps]


def test_a_call_of_which_all_rows_were_dropped_has_the_numbers_of_an_evaluation() -> None:
    call = CallResult("a.look", (), 0, 0, {"weight": 3.0})
    assert df.FlowStep(1, (call,), 2, True, 0.0, {})["a.look"] == {"weight": 3.0}
