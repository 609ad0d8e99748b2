"""Hooks: their order, their times, what they do to tensors; checkpoints."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import softs_fast.dataflow as df
from softs_fast.dataflow.process.objects import Objects
from softs_fast.errors import ConfigError, FlowError

LOG: list[str] = []


class Model(df.Role):
    """One weight that training counts up."""

    def setup(self, mesh: df.Mesh) -> None:
        self.net = nn.BatchNorm1d(1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        with torch.no_grad():
            self.net.weight.fill_({"actor": 1.0, "gen": 5.0, "average": 0.0}[mesh.name])

    def generate(self, rows: df.Rows) -> dict[str, Any]:
        return {"y": self.net.weight.expand(len(rows.ids)).clone()}

    def train(self, rows: df.Rows) -> dict[str, Any]:
        LOG.append("train")
        with torch.no_grad():
            self.net.weight.add_(1)
            self.net.running_mean.add_(1)
        return {"y": rows["y"].mean()}

    def evaluate(self) -> dict[str, float]:
        LOG.append("evaluate")
        return {"weight": self.net.weight.item()}


def endless() -> Iterator[dict[str, Any]]:
    while True:
        yield {"x": 0}


def flow_of(**hooks: Any) -> tuple[df.Flow, df.Placement, df.Placement]:
    LOG.clear()
    actor = df.place(Model, on=[0], name="actor")
    gen = df.place(Model, on=[1], follows=actor, name="gen")
    made = {name: [one(actor, gen) for one in given] for name, given in hooks.items()}
    made["after"] = [*made.get("after", []), df.publish(gen)]
    calls = [df.call(gen.generate, "x -> y", rows=2), df.call(actor.train, "y", rows=2, **made)]
    return df.Flow(calls, source=endless()), actor, gen


def test_a_role_that_follows_has_the_weights_that_were_published() -> None:
    flow, actor, gen = flow_of()
    with flow:
        assert flow.role(gen).net.weight.item() == 1  # from the beginning
        assert [step["actor.train"]["y"] for step in flow.steps(3)] == [1, 2, 3]
        assert flow.role(gen).net.weight.item() == 4
        assert flow.role(gen).net.running_mean.item() == 3
        assert flow.role(gen).net.weight.data_ptr() != flow.role(actor).net.weight.data_ptr()


def test_hooks_run_in_the_order_in_which_they_are_declared_and_are_timed() -> None:
    def note(text: str) -> Any:
        def noted(*objects: Model) -> None:
            time.sleep(0.01)
            LOG.append(f"{text} {len(objects)}")

        return noted

    flow, _, _ = flow_of(
        before=[lambda a, g: df.hook(note("first")), lambda a, g: df.hook(note("second"), on=[a, g])],
        after=[lambda a, g: df.evaluate(every=2), lambda a, g: df.hook(note("last"), on=[g])],
    )
    with flow:
        steps = list(flow.steps(2))
    once = ["first 1", "second 2", "train"]
    assert [*once, "last 1", *once, "evaluate", "last 1"] == LOG
    assert "weight" not in steps[0]["actor.train"]
    assert steps[1]["actor.train"]["weight"] == 3
    (call,) = [call for call in steps[1].calls if call.function == "actor.train"]
    assert list(call.seconds) == ["noted", "data_transfer", "main", "evaluate", "publish"]
    assert call.seconds["data_transfer"] == 0  # values are here
    assert call.seconds["noted"] >= 3 * 0.01  # all hooks of a name
    assert min(call.seconds[name] for name in ("main", "evaluate", "publish")) > 0


def test_param_realloc_mixes_parameters() -> None:
    average = df.place(Model, on=[2], name="average")
    flow, _, _ = flow_of(after=[lambda a, g: df.param_realloc(a, average, eta=0.25)])
    with flow:
        expected = 0.0
        for weight, _ in enumerate(flow.steps(3), 2):
            expected = 0.75 * expected + 0.25 * weight
            assert flow.role(average).net.weight.item() == pytest.approx(expected)
        assert flow.role(average).net.running_mean.item() == 0  # a buffer


def test_a_tensor_of_several_names_is_mixed_once() -> None:
    class Tied(df.Role):
        def setup(self, mesh: df.Mesh) -> None:
            self.net, self.head = nn.Linear(2, 2), nn.Linear(2, 2)
            self.head.weight = self.net.weight
            self.same = self.net

        def run(self, rows: df.Rows) -> None: ...

    source, target = df.place(Tied, name="source"), df.place(Tied, name="target")
    objects = Objects([source, target])
    objects.setup()
    before = [one.detach().clone() for one in objects[target].net.parameters()]
    objects.run(df.param_realloc(source, target, eta=0.5), None, 1)
    for one, old, other in zip(
        objects[target].net.parameters(), before, objects[source].net.parameters(), strict=True
    ):
        assert torch.equal(one, old.lerp(other, 0.5))


def test_a_role_that_lacks_tensors_of_the_one_that_it_follows_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Adapted(Model):
        def setup(self, mesh: df.Mesh) -> None:
            self.net = nn.Linear(1, 1)
            if mesh.name == "actor":
                self.net.adapter = nn.Linear(1, 1, bias=False)

    actor = df.place(Adapted, name="actor")
    Objects([actor, df.place(Adapted, follows=actor, name="gen")]).setup()
    assert [one.message for one in caplog.records] == [
        "weights of role 'actor': role 'gen' has no net.adapter.weight: they are not copied to it"
    ]


def test_weights_are_not_cut_to_a_dtype_without_their_values() -> None:
    class Counted(df.Role):
        def setup(self, mesh: df.Mesh) -> None:
            self.net = nn.Module()
            self.net.register_buffer(
                "n", torch.ones(2, dtype=torch.int32 if mesh.name == "gen" else torch.float32)
            )

        def run(self, rows: df.Rows) -> None: ...

    actor = df.place(Counted, name="actor")
    objects = Objects([actor, df.place(Counted, follows=actor, name="gen")])
    with pytest.raises(
        FlowError, match=r"net\.n is torch.float32, role 'gen' has torch.int32, which has no such values"
    ):
        objects.setup()


def test_weights_that_do_not_fit_are_named() -> None:
    class Large(Model):
        def setup(self, mesh: df.Mesh) -> None:
            self.net = nn.BatchNorm1d(2)

    class Other(Model):
        def setup(self, mesh: df.Mesh) -> None:
            self.other = nn.BatchNorm1d(1)

    class Empty(Model):
        def setup(self, mesh: df.Mesh) -> None: ...

    for role, complaint in [
        (Large, r"net.weight has shape \(1,\), role 'gen' has \(2,\)"),
        (Other, "'actor': it lacks other.bias, other.num_batches_tracked"),
        (Empty, "is copied to role 'gen', which has no modules"),
    ]:
        actor = df.place(Model, name="actor")
        gen = df.place(role, follows=actor, name="gen")
        calls = [
            df.call(gen.generate, "x -> y", rows=2),
            df.call(actor.train, "y", rows=2, after=[df.publish(gen)]),
        ]
        with pytest.raises(FlowError, match=complaint), df.Flow(calls, source=endless()):
            pass


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    flow, actor, _ = flow_of(after=[lambda a, g: df.save(tmp_path, every=2)])
    with flow:
        list(flow.steps(5))
        assert sorted(path.name for path in (tmp_path / "actor").iterdir()) == ["step-2", "step-4"]
        assert flow.role(actor).net.weight.item() == 6
        assert flow.load(actor, tmp_path) == 4
        assert flow.role(actor).net.weight.item() == 5
        with pytest.raises(ConfigError, match="has no checkpoint of role 'actor'"):
            flow.load(actor, tmp_path / "elsewhere")


def test_a_new_flow_goes_on_with_the_weights_and_the_momentum(tmp_path: Path) -> None:
    class Learner(df.Role):
        def setup(self, mesh: df.Mesh) -> None:
            self.first, self.second = nn.Linear(1, 2), nn.Linear(2, 1)
            parameters = [*self.first.parameters(), *self.second.parameters()]
            self.optimizer = torch.optim.Adam(parameters, lr=0.1)

        def train(self, rows: df.Rows) -> dict[str, Any]:
            loss = self.second(self.first(torch.ones(4, 1))).pow(2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            return {"loss": loss}

    def losses(n: int, *, load: bool) -> list[float]:
        torch.manual_seed(7 + load)
        learner = df.place(Learner)
        calls = [df.call(learner.train, "x", rows=2, after=[df.save(tmp_path, every=3)])]
        with df.Flow(calls, source=endless()) as flow:
            if load:
                assert flow.load(learner, tmp_path) == 3
            return [step["learner.train"]["loss"] for step in flow.steps(n)]

    whole = losses(5, load=False)
    assert losses(2, load=True) == whole[3:]


def test_a_checkpoint_that_was_not_completed_is_not_loaded(tmp_path: Path) -> None:
    flow, actor, _ = flow_of(after=[lambda a, g: df.save(tmp_path)])
    with flow:
        list(flow.steps(1))
        (tmp_path / "actor" / ".step-2.partial").mkdir()
        assert flow.load(actor, tmp_path) == 1
        list(flow.steps(1))  # writes over what a run before has left
    assert sorted(path.name for path in (tmp_path / "actor").iterdir()) == ["step-1", "step-2"]


def test_numbers_of_an_evaluation_do_not_replace_those_of_the_function() -> None:
    class Same(Model):
        def evaluate(self) -> dict[str, float]:
            return {"y": 0.0, "other": 1.0}

    role = df.place(Same, name="actor")
    calls = [df.call(role.train, "y", rows=2, after=[df.evaluate()])]
    with (
        df.Flow(calls, source=({"y": torch.ones(())} for _ in range(4))) as flow,
        pytest.raises(
            FlowError,
            match=r"hook evaluate of actor\.train failed .*: it reports y, which the call has reported",
        ),
    ):
        list(flow.steps())


def test_a_hook_that_fails_is_named() -> None:
    def broken(role: Model) -> None:
        raise OSError("disk is full")

    flow, _, _ = flow_of(before=[lambda a, g: df.hook(broken)])
    with (
        flow,
        pytest.raises(
            FlowError, match=r"hook broken of actor.train failed on 2 rows \[0, 1\]: OSError: disk is full"
        ),
    ):
        next(flow.steps())
    assert LOG == []  # training did not run
