"""Weights through shared memory: each target ends with its part of the full tensors, whatever comes first."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from random_layouts import Sharding, random_shape, random_sharding

import softs_fast.dataflow as df
from softs_fast.dataflow.store import DataManager
from softs_fast.dataflow.store.weights.boxes import Box
from softs_fast.dataflow.store.weights.exchange import is_local, show, take
from softs_fast.dataflow.store.weights.forms import Held, HeldForm, HeldForms
from softs_fast.dataflow.store.weights.held import held_tensors
from softs_fast.dataflow.store.weights.shown import Shown
from softs_fast.errors import FlowError


class Model(df.Role):
    """A role."""


def held_by(
    sharding: Sharding, tensors: dict[str, torch.Tensor], *, is_known: bool = True
) -> dict[int, Held]:
    """What each worker holds, in memory of its own; replicas may not know of each other, and all show what they have."""
    forms: dict[int, dict[str, HeldForm]] = {worker: {} for worker in sharding.workers}
    locals_: dict[int, list[torch.Tensor]] = {worker: [] for worker in sharding.workers}
    for name, tensor in tensors.items():
        dims = tuple(dim if dim is None or dim < tensor.ndim else None for dim in sharding.dims)
        cut = replace(sharding, dims=dims)
        parts = cut.pieces(tuple(tensor.shape))
        for worker, (size, pieces) in parts.items():
            same = tuple(sorted(other for other in parts if parts[other] == parts[worker]))
            if not is_known:
                same = (worker,)
            layout = (
                sharding.mesh,
                sharding.workers,
                *((i, dim) for i, dim in enumerate(dims) if dim is not None),
            )
            index = same.index(worker)
            forms[worker][name] = HeldForm(
                tensor.dtype,
                size,
                True,
                tuple(tensor.shape),
                pieces,
                same,
                index,
                (*layout, sharding.factors),
            )
            locals_[worker].append(cut.part(tensor, worker))
    return {worker: Held(HeldForms(one), locals_[worker]) for worker, one in forms.items()}


def role(name: str, sharding: Sharding) -> df.Placement:
    n = len(sharding.workers)
    return df.place(Model, f"dp{n}", on=sharding.workers, name=name)


class Await:
    """What others show, one by one in a given order; it counts how many were needed."""

    def __init__(self, shown: Sequence[Shown]) -> None:
        self.shown = shown
        self.n = 0

    def __call__(self, known: int) -> Sequence[Shown]:
        assert known == self.n
        assert known < len(self.shown), "it waits for more than there is"
        self.n += 1
        return self.shown[: self.n]


@pytest.mark.parametrize("seed", range(6))
def test_random_roles_get_the_weights_of_random_roles(seed: int) -> None:
    chance = random.Random(seed)
    with ExitStack() as stack:
        stores = [stack.enter_context(DataManager(i, max_bytes=1 << 20)) for i in range(6)]
        for _ in range(40):
            shapes = {f"w{i}": random_shape(chance) for i in range(chance.randint(1, 4))}
            torch.manual_seed(chance.randrange(1 << 30))
            old = {name: torch.randn(shape) for name, shape in shapes.items()}
            new = {name: torch.randn(shape) for name, shape in shapes.items()}
            one, other = (random_sharding(chance, (9, 9), 6) for _ in range(2))
            source, target = role("a", one), role("b", other)
            theirs = held_by(one, new, is_known=chance.random() < 0.5)
            mine = held_by(other, old)
            eta = chance.choice([None, 0.25])
            shown = {worker: show(stores[worker], 77, 0, held) for worker, held in theirs.items()}
            for worker, held in mine.items():
                there = [shown[w] for w in chance.sample(one.workers, len(one.workers)) if w != worker]
                take(
                    stores[worker].mapped,
                    source,
                    target,
                    worker=worker,
                    theirs=theirs.get(worker),
                    mine=held,
                    eta=eta,
                    await_shown=Await(there),
                )
                for name, got in held.by_name.items():
                    full = new[name] if eta is None else old[name].lerp(new[name], eta)
                    dims = tuple(dim if dim is None or dim < full.ndim else None for dim in other.dims)
                    assert torch.equal(got, replace(other, dims=dims).part(full, worker))
            assert sum(len(one.layout.regions) for one in shown.values()) >= len(
                [name for name in shapes if np.prod(shapes[name])]
            )
            for store in stores:
                store.free([77])


@pytest.fixture
def stores() -> Iterator[list[DataManager]]:
    with ExitStack() as stack:
        yield [stack.enter_context(DataManager(i, max_bytes=1 << 20)) for i in range(4)]


ROWS = Sharding((2,), (0,), (0, 1))
TARGET = Sharding((2,), (0,), (2, 3))
FULL = {"w": torch.arange(32.0).reshape(8, 4)}


def take_rows(store: DataManager, mine: Held, await_shown: Any, **changes: Any) -> None:
    options = {"theirs": None, "eta": None, "worker": 3} | changes
    take(store.mapped, role("a", ROWS), role("b", TARGET), mine=mine, await_shown=await_shown, **options)


def test_a_target_goes_on_when_all_that_it_needs_is_shown(stores: list[DataManager]) -> None:
    theirs = held_by(ROWS, FULL)
    first, second = (show(stores[worker], 5, 0, theirs[worker]) for worker in (0, 1))
    for order, n_needed in (((second, first), 1), ((first, second), 2)):
        mine = held_by(TARGET, {"w": torch.zeros(8, 4)})[3]
        known = Await(order)
        take_rows(stores[3], mine, known)
        assert known.n == n_needed
        assert torch.equal(mine.by_name["w"], FULL["w"][4:])


def test_what_is_known_of_an_order_is_not_taken_for_another_one(stores: list[DataManager]) -> None:
    """Three workers show all, or parts: a target waits for no more than it needs, whatever it has planned before."""
    parts = Sharding((3,), (0,), (0, 1, 2))
    source, target = role("a", parts), role("b", TARGET)
    forms = held_by(TARGET, FULL)[3].forms
    chance = random.Random(2)
    for number in range(60):
        full = {"w": FULL["w"] + number}
        theirs, complete = (
            held_by(parts, full),
            held_by(Sharding((3,), (None,), (0, 1, 2)), full, is_known=False),
        )
        mine = Held(forms, [torch.zeros(4, 4)])
        has_all = [chance.random() < 0.2 for _ in range(3)]
        shown = [
            show(stores[worker], 5, 0, (complete if has_all[worker] else theirs)[worker])
            for worker in range(3)
        ]
        order = chance.sample(range(3), 3)
        seen: set[int] = set()
        n_needed = 0
        while not {1, 2} <= seen:  # they have rows 4 to 7
            worker = order[n_needed]
            seen |= {1, 2} if has_all[worker] else {worker}
            n_needed += 1
        known = Await([shown[worker] for worker in order])
        take(stores[3].mapped, source, target, worker=3, theirs=None, mine=mine, eta=None, await_shown=known)
        assert known.n == n_needed
        assert torch.equal(mine.tensors[0], full["w"][4:])


def test_nothing_changes_before_all_is_there(stores: list[DataManager]) -> None:
    three = Sharding((3,), (0,), (0, 1, 2))
    theirs = held_by(three, FULL)
    mine = held_by(TARGET, {"w": torch.zeros(8, 4)})[3]
    shown = [show(stores[worker], 5, 0, theirs[worker]) for worker in (0, 1, 2)]

    class Failed(Exception):
        """The step was aborted."""

    def await_shown(known: int) -> Sequence[Shown]:
        assert not mine.by_name["w"].any()
        if known == 2:
            raise Failed
        return shown[: known + 1]

    with pytest.raises(Failed):
        take(
            stores[3].mapped, role("a", three), role("b", TARGET), worker=3, theirs=None, mine=mine, eta=0.5, await_shown=await_shown
        )  # fmt: skip
    assert not mine.by_name["w"].any()


def test_what_does_not_fit_is_named_with_both_shapes(stores: list[DataManager]) -> None:
    theirs = held_by(ROWS, FULL)
    shown = [show(stores[worker], 5, 0, theirs[worker]) for worker in (0, 1)]
    cases: list[tuple[dict[str, torch.Tensor], str]] = [
        ({"w": torch.zeros(8, 5)}, r"'a': w has shape \(8, 4\), role 'b' has \(8, 5\)"),
        ({"w": torch.zeros(8, 4), "v": torch.zeros(2)}, "'a': it lacks v"),
        ({"w": torch.zeros(8, 4, dtype=torch.int64)}, r"w is float32 \[8, 4\], role 'b' has int64"),
        ({}, "'a': it is copied to role 'b', which has no modules"),
    ]
    for tensors, complaint in cases:
        mine = held_by(TARGET, tensors)[3]
        before = [one.clone() for one in mine.tensors]
        with pytest.raises(FlowError, match=complaint):
            take_rows(stores[3], mine, Await(shown))
        # The same of an object in this process.
        with pytest.raises(FlowError, match=complaint):
            take_rows(stores[1], mine, Await(shown[:1]), theirs=theirs[1], worker=1)
        assert all(map(torch.equal, mine.tensors, before))
    # A worker that has not the part that its layout says.
    with pytest.raises(
        FlowError, match=r"none of its workers \[0, 1\] shows \[4:8, 0:4\] of w, which role 'b' needs"
    ):
        take_rows(stores[3], held_by(TARGET, FULL)[3], Await([shown[0], show(stores[1], 5, 0, None)]))


def test_other_dtypes_are_converted_and_nothing_else(stores: list[DataManager]) -> None:
    theirs = held_by(ROWS, FULL)
    shown = [show(stores[worker], 5, 0, theirs[worker]) for worker in (0, 1)]
    for eta in (None, 0.5):
        mine = held_by(TARGET, {"w": torch.ones(8, 4, dtype=torch.bfloat16)})[3]
        take_rows(stores[3], mine, Await(shown), eta=eta)
        expected = FULL["w"][4:] if eta is None else FULL["w"][4:] / 2 + 0.5
        assert torch.equal(mine.by_name["w"], expected.bfloat16())


def test_a_tensor_of_two_names_is_mixed_once(stores: list[DataManager]) -> None:
    full = {"w": torch.full((8, 4), 4.0), "tied": torch.full((8, 4), 4.0)}
    theirs = held_by(ROWS, full)
    shown = [show(stores[worker], 5, 0, theirs[worker]) for worker in (0, 1)]
    one = held_by(TARGET, {"w": torch.zeros(8, 4)})[3]
    mine = Held(HeldForms({"w": one.forms["w"], "tied": one.forms["w"]}), one.tensors * 2)
    take_rows(stores[3], mine, Await(shown), eta=0.5)
    assert (mine.by_name["w"] == 2).all()


def test_what_was_freed_is_not_read(stores: list[DataManager]) -> None:
    """As with what was shown for an older ticket."""
    theirs = held_by(ROWS, FULL)
    old = [show(stores[worker], 5, 0, theirs[worker]) for worker in (0, 1)]
    for worker in (0, 1):
        stores[worker].free([5])
        show(stores[worker], 6, 0, theirs[worker])
    mine = held_by(TARGET, {"w": torch.zeros(8, 4)})[3]
    with pytest.raises(FlowError, match="1 of 1 values of worker 1 are gone"):
        take_rows(stores[3], mine, Await(old[::-1]))
    assert not mine.by_name["w"].any()


def test_what_is_freed_while_it_is_read_is_noticed(stores: list[DataManager]) -> None:
    place = show(stores[0], 5, 0, held_by(ROWS, FULL)[0]).place
    with pytest.raises(FlowError, match="are gone"), stores[3].mapped(place):
        stores[0].free([5])
    with pytest.raises(FlowError, match="are gone"), stores[3].mapped(place):
        pass


def test_all_workers_agree_whether_something_is_shown() -> None:
    chance = random.Random(3)
    n_local = n_coincident = 0
    for _ in range(500):
        full = {f"w{i}": torch.zeros(random_shape(chance)) for i in range(chance.randint(1, 2))}
        one = random_sharding(chance, (1, 1), 4)
        other = replace(one, dims=tuple(chance.choice([dim, None, 0, 1]) for dim in one.dims))
        theirs, mine = held_by(one, full), held_by(other, full)
        answers = {
            is_local(role("a", one), role("b", other), theirs[worker].forms, mine[worker].forms)
            for worker in one.workers
        }
        assert len(answers) == 1
        equal = [
            all(theirs[worker].forms[name].pieces == mine[worker].forms[name].pieces for name in full)
            for worker in one.workers
        ]
        if answers == {True}:
            assert all(equal)
            n_local += 1
        n_coincident += any(equal) and not all(equal)
    assert n_local > 100
    assert n_coincident > 10


def test_roles_in_the_same_layout_on_the_same_workers_show_nothing() -> None:
    source, target = (df.place(Model, "dp2", on=[0, 1], name=name) for name in ("a", "b"))
    other = df.place(Model, "dp2", on=[1, 0], name="c")
    rows, none = held_by(ROWS, FULL)[0].forms, HeldForms({})
    whole_tensor = held_tensors(source, 0, FULL).forms
    assert is_local(source, target, rows, rows)
    assert is_local(source, target, whole_tensor, whole_tensor)
    assert not is_local(source, target, rows, whole_tensor)
    assert not is_local(source, target, none, rows)
    assert not is_local(source, target, rows, None)
    assert not is_local(source, other, rows, rows)
    alone = df.place(Model, on=[4], name="d")
    assert is_local(alone, df.place(Model, on=[4], name="e"), rows, None)
    assert whole_tensor["w"].boxes == [Box((0, 0), (8, 4))]
