"""`data_transfer` as it is declared: which columns it brings, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.declaration import Declaration
from softs_fast.dataflow.declare.transfer import columns_of, names_of
from softs_fast.errors import ConfigError


class Model(df.Role):
    def make(self, rows: df.Rows) -> None: ...
    def train(self, rows: df.Rows) -> None: ...


maker, critic = df.place(Model, name="maker"), df.place(Model, on=[1], name="critic")


def call(
    before: tuple[Any, ...] = (), after: tuple[Any, ...] = (), columns: str = "x, y as z -> a, b"
) -> df.MFCDef:
    return df.call(maker.make, columns, rows=2, before=before, after=after, interface=df.Interface.INFERENCE)


def test_the_columns_of_a_hook() -> None:
    inputs, outputs = ("x", "y"), ("a", "b")
    both = [columns_of(df.data_transfer(), inputs, outputs, is_before=one) for one in (True, False)]
    assert both == [inputs, outputs]
    assert columns_of(df.data_transfer(critic, "b, x"), inputs, outputs, is_before=False) == ("b", "x")
    assert df.data_transfer(critic).roles == (critic,)
    assert df.data_transfer().name == "data_transfer"
    assert names_of(" seq ,logp") == ("seq", "logp")


def test_a_flow_has_it_among_its_lines() -> None:
    one = call(before=(df.data_transfer(columns="y"),), after=(df.data_transfer(critic),))
    assert Declaration((one,)).lines()[-2:] == [
        "hook 0: DataTransfer(), every=1, columns=y",
        "hook 1: DataTransfer(critic), every=1, columns=default",
    ]


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: names_of("a as b"), "columns 'a as b' are moved as they are; need names alone"),
        (lambda: names_of("a -> b"), "are moved as they are"),
        (lambda: names_of("a, a"), "name a twice"),
        (lambda: names_of("7"), "'7' is not a name"),
        (lambda: call(before=(df.data_transfer(critic),)), "data_transfer to role 'critic' before it"),
        (lambda: call(before=(df.data_transfer(columns="a"),)), "before it brings a; there are x, y"),
        (lambda: call(after=(df.data_transfer(),)), "data_transfer after it needs a role"),
        (lambda: call(after=(df.data_transfer(critic, "z"),)), "after it brings z; there are x, y, a, b"),
        (
            lambda: call(after=(df.data_transfer(critic),), columns="x"),
            "after it names no column; there are x",
        ),
        (
            lambda: df.call(len, "x -> y", rows=2, before=[df.data_transfer()]),
            "len has no role, so its hook data_transfer needs one",
        ),
    ],
)
def test_what_is_refused(make: Callable[[], object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        make()


def test_a_role_that_only_a_transfer_names_is_not_made_in_vain() -> None:
    declaration = Declaration((call(after=(df.data_transfer(critic),)),))
    assert declaration.roles == (maker, critic)
    assert declaration.workers == (0, 1)
