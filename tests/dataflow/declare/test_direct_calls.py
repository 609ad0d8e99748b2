"""`MFCDef` by hand: with all that it has in common with AReaL's, a flow has the bits of the same calls by `df.call`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from flows import Linear, note, numbers, summary

import softs_fast.dataflow as df
from softs_fast.errors import ConfigError


class Model(Linear):
    """Knows its columns by names of its own."""

    @torch.no_grad()
    def generate(self, rows: df.Rows) -> dict[str, Any]:
        return {"answer": self.net(rows["question"]), "length": rows.n_rows}

    def train(self, rows: df.Rows) -> dict[str, Any]:
        return self.learn((self.net(rows["question"]) - rows["target"] - rows["ref"]).pow(2).mean())


def half(rows: df.Rows) -> dict[str, Any]:
    """A function without a role."""
    return {"half": rows["whole"] / 2}


def roles() -> tuple[df.Placement, df.Placement]:
    actor = df.place(Model, name="actor")
    return actor, df.place(Model, on=[1], follows=actor, name="gen")


def by_hand(interfaces: tuple[Any, Any, Any] = tuple(df.Interface)) -> df.Flow:
    """The flow with each field named; interfaces: generate, inference, train_step."""
    actor, gen = roles()
    generate, inference, train_step = interfaces
    calls = [
        df.MFCDef(
            name="write",
            model_name=gen,
            interface_type=generate,
            interface_impl="generate",
            input_keys=("x",),
            output_keys=("y",),
            input_key_remap={"x": "question"},
            output_key_remap={"answer": "y"},
            n_seqs=4,
            pre_hooks=(df.hook(note),),
            post_hooks=(df.hook(note, on=[actor], every=2),),
        ),
        df.MFCDef(
            name="halve",
            model_name=None,
            interface_type=inference,
            interface_impl=half,
            input_keys=("y",),
            output_keys=("z",),
            input_key_remap={"y": "whole"},
            output_key_remap={"half": "z"},
            n_seqs=2,
        ),
        df.MFCDef(
            name="learn",
            model_name=actor,
            interface_type=train_step,
            interface_impl="train",
            input_keys=("x", "y", "z"),
            input_key_remap={"x": "question", "y": "target", "z": "ref"},
            n_seqs=8,
            pre_hooks=(df.hook(note, every=3),),
            post_hooks=(df.publish(gen), df.evaluate()),
        ),
    ]
    return df.Flow(calls, source=numbers(), group=2, digests=True)


def by_call() -> df.Flow:
    """The same in the short way."""
    actor, gen = roles()
    calls = [
        df.call(
            gen.generate,
            "x as question -> answer as y",
            rows=4,
            name="write",
            before=[df.hook(note)],
            after=[df.hook(note, on=[actor], every=2)],
        ),
        df.call(half, "y as whole -> half as z", rows=2, name="halve"),
        df.call(
            actor.train,
            "x as question, y as target, z as ref",
            rows=8,
            name="learn",
            before=[df.hook(note, every=3)],
            after=[df.publish(gen), df.evaluate()],
        ),
    ]
    return df.Flow(calls, source=numbers(), group=2, digests=True)


def test_calls_by_hand_have_the_digests_and_numbers_of_the_short_way() -> None:
    found = summary(by_hand(), 4)
    assert found == summary(by_call(), 4)
    assert by_hand().declaration.lines() == by_call().declaration.lines()
    losses = [numbers["loss"] for _, _, calls in found for name, _, _, numbers in calls if name == "learn"]
    assert len(set(losses)) == 4


def test_an_interface_may_be_given_by_its_word() -> None:
    """What is no member of the enum would be no training function, without a word."""
    flow = by_hand(("generate", "inference", "train_step"))
    assert [one.interface_type for one in flow.declaration.calls] == list(df.Interface)
    assert flow.declaration.lines() == by_call().declaration.lines()
    assert summary(flow, 2) == summary(by_call(), 2)
    with pytest.raises(
        ConfigError,
        match="write: interface_type is 'trian'; need generate, inference or train_step",
    ):
        by_hand(("trian", "inference", "train_step"))


@pytest.mark.parametrize(
    ("remaps", "complaint"),
    [
        (
            {"input_key_remap": {"seq": "a", "X": "question"}},
            "write renames columns that it does not have: X, seq$",
        ),
        ({"output_key_remap": {"answer": "why"}}, "write renames columns that it does not have: why$"),
        # The keys of inputs are columns, those of outputs names of the function: not the other way round.
        ({"input_key_remap": {"question": "x"}}, "columns that it does not have: question$"),
        ({"output_key_remap": {"y": "answer"}}, "columns that it does not have: answer$"),
    ],
)
def test_what_renames_columns_that_are_not_there_is_refused(remaps: dict[str, Any], complaint: str) -> None:
    fields: dict[str, Any] = {
        "name": "write",
        "model_name": df.place(Model),
        "interface_type": df.Interface.GENERATE,
        "interface_impl": "generate",
        "input_keys": ("x",),
        "output_keys": ("y",),
    }
    with pytest.raises(ConfigError, match=complaint):
        df.MFCDef(**fields, **remaps)
