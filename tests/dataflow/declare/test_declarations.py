"""Layouts, columns, roles, calls and hooks: what is read, what is refused with which words, and the text of a declaration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.columns import Columns
from softs_fast.dataflow.declare.declaration import Declaration
from softs_fast.dataflow.declare.transfer import columns_of, names_of
from softs_fast.errors import ConfigError


class Model(df.Role):
    """Has some functions."""

    def generate(self, rows: df.Rows) -> None: ...

    def score(self, rows: df.Rows) -> None: ...

    def train(self, rows: df.Rows) -> None: ...


def plain(rows: df.Rows) -> None: ...


def test_a_layout_has_the_names_of_a_device_mesh() -> None:
    layout = df.Layout.parse("pp2 dp4 tp8")
    assert layout.dims == (("pp", 2), ("dp", 4), ("tp", 8))
    assert (layout.n_workers, layout.size("dp"), layout.size("cp")) == (64, 4, 1)
    assert str(layout) == "pp2 dp4 tp8"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "has 0 workers"),
        ("dp0", "has 0 workers"),
        ("dp2 dp2", "dp occurs twice"),
        ("d2t2p1", "'d2t2p1' is not one of pp, dp, cp, tp, ep and a size"),
        ("dp-1", "is not one of"),
        ("dp9999999 tp9999999", "need 1 to 1048576"),
    ],
)
def test_layouts_that_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        df.Layout.parse(text)


def test_a_pool_is_a_role_on_each_of_its_workers() -> None:
    actor = df.place(Model, name="actor")
    gen = df.place(Model, pool=range(1, 3), follows=actor, name="gen")
    assert [(one.name, one.on, one.pool, one.follows) for one in gen.replicas] == [
        ("gen_1", (1,), "gen", actor),
        ("gen_2", (2,), "gen", actor),
    ]
    assert df.publish(gen).roles == gen.replicas
    calls = [
        df.call(gen.generate, "x -> y", rows=2),
        df.call(actor.train, "y", rows=2, after=[df.publish(gen)]),
    ]
    flow = df.Flow(calls, source=[{"x": 1}])
    assert flow.declaration.roles == (*gen.replicas, actor)
    assert [(one.name, one.workers, one.is_pool) for one in flow.plan.functions] == [
        ("gen.generate", (1, 2), True),
        ("actor.train", (0,), False),
    ]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            {"pool": [1, 2], "on": [1, 2]},
            r"pool=\[1, 2\], layout 'dp1' and on=\[1, 2\]; a pool has at least one",
        ),
        ({"pool": [1, 2], "layout": "dp2"}, "neither `on` nor a layout of several"),
        ({"pool": []}, "a pool has at least one worker"),
        ({"pool": [1, 1]}, "need different numbers"),
        (
            {"pool": [1, 2], "follows": None},
            "its replicas would not stay equal; give it `follows` or frozen=True",
        ),
    ],
)
def test_pools_that_are_refused(arguments: dict[str, Any], complaint: str) -> None:
    actor = df.place(Model, name="actor")
    with pytest.raises(ConfigError, match=complaint):
        df.place(Model, **{"follows": actor, "name": "gen", **arguments})


def test_what_cannot_be_done_with_a_pool_is_refused() -> None:
    actor = df.place(Model, name="actor")
    gen = df.place(Model, pool=[1, 2], follows=actor, name="gen")

    def flow(*hooks: df.Hook) -> df.Flow:
        calls = [
            df.call(gen.generate, "x -> y", rows=2),
            df.call(actor.train, "y", rows=2, after=[df.publish(gen), *hooks]),
        ]
        return df.Flow(calls, source=[{"x": 1}])

    with pytest.raises(ConfigError, match="pool 'gen' is named by a hook or a dataset"):
        flow(df.offload(gen))
    with pytest.raises(ConfigError, match="role 'late' follows 'gen', which is a pool"):
        df.place(Model, follows=df.place(Model, pool=[1], frozen=True, name="gen"), name="late")
    with pytest.raises(ConfigError, match=r"gen\.train trains role 'gen', which follows 'actor'"):
        df.call(gen.train, "y", rows=2, interface=df.Interface.TRAIN_STEP)


def test_columns_are_renamed_from_left_to_right() -> None:
    columns = Columns.parse("prompt, logp as old_logp -> seq, logp as ref_logp")
    assert columns.inputs == ("prompt", "logp")
    assert columns.outputs == ("seq", "ref_logp")
    assert columns.input_remap == {"logp": "old_logp"}
    assert columns.output_remap == {"logp": "ref_logp"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a -> b -> c", "have 2 arrows"),
        ("-> b", "have no input"),
        ("a b -> c", "'a b' is not a name"),
        ("a, a -> c", "name a twice"),
        ("a, b as a -> c", "name a twice"),
        ("a -> 1c", "'1c' is not a name"),
    ],
)
def test_columns_that_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Columns.parse(text)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (dict(layout="dp2"), "layout 'dp2' needs 2 workers, `on` has 1"),
        (dict(layout="dp2", on=[1, 1]), "need different numbers from 0"),
        (dict(on=[-1]), "need different numbers from 0"),
        (dict(name="a b"), "no identifier"),
        (dict(follows=df.place(Model, name="a"), frozen=True), "is frozen and follows 'a'"),
        (dict(follows=df.place(Model, follows=df.place(Model), name="b")), "follow that one"),
    ],
)
def test_places_that_are_refused(arguments: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        df.place(Model, **{"layout": "dp1", **arguments})  # type: ignore[arg-type]


def test_a_method_with_the_name_of_an_attribute_is_refused() -> None:
    class Frozen(df.Role):
        def frozen(self) -> None: ...

    with pytest.raises(ConfigError, match="has methods frozen"):
        df.place(Frozen)
    with pytest.raises(ConfigError, match="no class derived from"):
        df.place(int)  # type: ignore[arg-type]


def test_functions_of_a_role_are_its_attributes() -> None:
    actor = df.place(Model, "dp2", on=(3, 5), name="actor")
    assert actor.train.name == "actor.train"
    assert repr(actor) == "<role 'actor': dp2 on [3, 5]>"
    with pytest.raises(AttributeError, match="role 'actor' \\(Model\\) has no method 'trian'"):
        _ = actor.trian


def test_the_interface_follows_from_role_and_columns() -> None:
    actor, ref = df.place(Model), df.place(Model, frozen=True, name="ref")
    kinds = [
        df.call(actor.generate, "a -> b", rows=2).interface_type,
        df.call(actor.score, "a -> b", rows=2).interface_type,
        df.call(actor.train, "a", rows=2).interface_type,
        df.call(ref.score, "a", rows=2).interface_type,
        df.call(actor.score, "a", rows=2, partition="val").interface_type,
        df.call(plain, "a", rows=2).interface_type,
    ]
    generate, inference, train_step = df.Interface
    assert kinds == [generate, inference, train_step, inference, inference, inference]


def test_a_call_is_an_mfc_def_of_areal() -> None:
    actor = df.place(Model, name="actor")
    short = df.call(actor.score, "seq, logp as old -> logp as new", rows=8, at_least=2)
    assert (short.name, short.model_name, short.interface_impl) == ("actor.score", actor, "score")
    assert (short.input_keys, short.output_keys, short.n_seqs, short.least) == (
        ("seq", "logp"),
        ("new",),
        8,
        2,
    )
    long = df.MFCDef(
        name="actor_inf",
        model_name=actor,
        interface_type=df.Interface.INFERENCE,
        interface_impl="score",
        input_keys=("seq",),
        output_keys=("logp",),
        n_seqs=16,
    )
    assert (long.least, long.trains) == (16, False)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (dict(rows=0), "need 1 <= at_least <= rows"),
        (dict(rows=4, at_least=5), "rows=4, at_least=5"),
        (dict(reuse=0), "reuse=0"),
        (dict(reuse=2, at_least=1), "needs whole passes"),
        (dict(uneven="cut"), "uneven is 'cut'"),
        (dict(after=[df.publish(df.place(Model, name="gen"))]), "publishes to gen, which does not follow"),
        (dict(after=[df.evaluate()]), "has no method evaluate"),
        (dict(before=[df.save("/nowhere")]), "save can only be a hook after the main part"),
    ],
)
def test_calls_that_are_refused(arguments: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        df.call(df.place(Model).train, "a", **{"rows": 4, **arguments})  # type: ignore[arg-type]


def test_hooks_and_roles_that_contradict_are_refused() -> None:
    actor, ref = df.place(Model), df.place(Model, frozen=True, name="ref")
    with pytest.raises(ConfigError, match=r"trains role 'ref', which is frozen"):
        df.call(ref.train, "a", rows=4, interface=df.Interface.TRAIN_STEP)
    with pytest.raises(ConfigError, match="changes role 'ref', which is frozen"):
        df.call(actor.train, "a", rows=4, after=[df.param_realloc(actor, ref)])
    with pytest.raises(ConfigError, match="has no role, so its hook evaluate needs one"):
        df.call(plain, "a", rows=4, after=[df.evaluate()])
    with pytest.raises(ConfigError, match="eta 0"):
        df.param_realloc(actor, ref, eta=0)
    with pytest.raises(ConfigError, match="to itself"):
        df.param_realloc(actor, actor)
    with pytest.raises(ConfigError, match="every is 0"):
        df.evaluate(every=0)
    with pytest.raises(ConfigError, match="no role to publish to"):
        df.publish()
    with pytest.raises(ConfigError, match="cannot be called"):
        df.hook(3)  # type: ignore[arg-type]


def note(role: Model) -> None: ...
def other(role: Model) -> None: ...


def declared(
    *,
    on: int = 1,
    columns: str = "x -> y",
    rows: int = 2,
    hook: Callable[..., None] = note,
    folder: str = "/a",
    eta: float = 0.5,
    group: int = 1,
    digests: bool = False,
) -> Declaration:
    actor = df.place(Model, name="actor")
    gen = df.place(Model, on=[on], follows=actor, name="gen")
    mean = df.place(Model, name="mean")
    after = [df.publish(gen), df.hook(hook), df.save(Path(folder)), df.param_realloc(actor, mean, eta=eta)]
    calls = (df.call(gen.generate, columns, rows=rows), df.call(actor.train, "y", rows=2, after=after))
    return Declaration(calls, group, digests)


def test_the_same_function_declares_the_same() -> None:
    first, second = declared(), declared()
    assert first.lines() == second.lines()
    assert [role.name for role in first.roles] == [role.name for role in second.roles]
    assert first.workers == (0, 1)
    first.check_processes()


@pytest.mark.parametrize(
    "changes",
    [
        {"on": 2},
        {"columns": "x, z -> y"},
        {"columns": "x -> z as y"},
        {"rows": 4},
        {"hook": other},
        {"folder": "/b"},
        {"eta": 0.25},
        {"group": 2},
        {"digests": True},
    ],
    ids=lambda changes: (
        " ".join(f"{key}={value}" for key, value in changes.items() if key != "hook") or "hook"
    ),
)
def test_each_thing_that_messages_name_by_number_is_in_the_text(changes: dict[str, Any]) -> None:
    mine, theirs = declared().lines(), declared(**changes).lines()
    assert len(mine) == len(theirs)
    assert sum(one != another for one, another in zip(mine, theirs, strict=True)) == 1


maker, critic = df.place(Model, name="maker"), df.place(Model, on=[1], name="critic")


def make_call(
    before: tuple[Any, ...] = (), after: tuple[Any, ...] = (), columns: str = "x, y as z -> a, b"
) -> df.MFCDef:
    return df.call(
        maker.generate, columns, rows=2, before=before, after=after, interface=df.Interface.INFERENCE
    )


def test_the_columns_of_a_transfer() -> None:
    inputs, outputs = ("x", "y"), ("a", "b")
    both = [columns_of(df.data_transfer(), inputs, outputs, is_before=one) for one in (True, False)]
    assert both == [inputs, outputs]
    assert columns_of(df.data_transfer(critic, "b, x"), inputs, outputs, is_before=False) == ("b", "x")
    assert df.data_transfer(critic).roles == (critic,)
    assert df.data_transfer().name == "data_transfer"
    assert names_of(" seq ,logp") == ("seq", "logp")


def test_a_flow_has_a_transfer_among_its_lines() -> None:
    one = make_call(before=(df.data_transfer(columns="y"),), after=(df.data_transfer(critic),))
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
        (lambda: make_call(before=(df.data_transfer(critic),)), "data_transfer to role 'critic' before it"),
        (lambda: make_call(before=(df.data_transfer(columns="a"),)), "before it brings a; there are x, y"),
        (lambda: make_call(after=(df.data_transfer(),)), "data_transfer after it needs a role"),
        (
            lambda: make_call(after=(df.data_transfer(critic, "z"),)),
            "after it brings z; there are x, y, a, b",
        ),
        (
            lambda: make_call(after=(df.data_transfer(critic),), columns="x"),
            "after it names no column; there are x",
        ),
        (
            lambda: df.call(len, "x -> y", rows=2, before=[df.data_transfer()]),
            "len has no role, so its hook data_transfer needs one",
        ),
    ],
)
def test_transfers_that_are_refused(make: Callable[[], object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        make()


def test_a_role_that_only_a_transfer_names_is_not_made_in_vain() -> None:
    declaration = Declaration((make_call(after=(df.data_transfer(critic),)),))
    assert declaration.roles == (maker, critic)
    assert declaration.workers == (0, 1)
