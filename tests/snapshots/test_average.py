"""Averages of snapshots: exact by their definition, applied as a whole or not at all."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest
import torch
from meshes import shard_of_two
from torch import Tensor

from softs_fast.errors import ConfigError, NotFinite
from softs_fast.snapshots import RemoteWindow, SnapshotLayout, Window, average, fetch

# More than a block of csrc/snapshots/average.cpp, and no multiple of a vector.
COUNT = 20_011
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]


@contextmanager
def donors(models: Sequence[dict[str, Tensor]]) -> Iterator[list[RemoteWindow]]:
    """Yield the windows of models that were published."""
    with ExitStack() as stack:
        remotes = []
        for step, tensors in enumerate(models):
            window = stack.enter_context(Window(SnapshotLayout.of(tensors)))
            window.publish(tensors, step=step, metric=None, trained=step)
            remotes.append(stack.enter_context(RemoteWindow.open(window.address)))
        yield remotes


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "weights", [(0.5,), (0.25, 0.75), (1 / 3, 1 / 3, 1 / 3), (0.1, 0.2, 0.3, 0.15, 0.25)]
)
def test_floats_are_weighted_in_the_accumulator_and_rounded_once(
    dtype: torch.dtype, weights: tuple[float, ...]
) -> None:
    torch.manual_seed(len(weights))
    models = [{"w": (torch.randn(COUNT, dtype=torch.float64) * 10).to(dtype)} for _ in weights]
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    factors = [torch.tensor(weight, dtype=torch.float64).to(wide) for weight in weights]
    expected = models[0]["w"].to(wide) * factors[0]
    for tensors, factor in zip(models[1:], factors[1:], strict=True):
        expected = expected + tensors["w"].to(wide) * factor
    into = {"w": torch.zeros(COUNT, dtype=dtype)}
    with donors(models) as remotes:
        headers = average(remotes, weights, into, SnapshotLayout.of(into))
    assert headers is not None
    assert [header.step for header in headers] == list(range(len(weights)))
    assert torch.equal(into["w"], expected.to(dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_are_the_largest(dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    limits = torch.iinfo(dtype)
    low, high = max(limits.min, -(2**62)), min(limits.max, 2**62)
    models = [{"n": torch.randint(low, high, (COUNT,)).to(dtype)} for _ in range(3)]
    into = {"n": torch.zeros(COUNT, dtype=dtype)}
    with donors(models) as remotes:
        assert average(remotes, [0.2, 0.3, 0.5], into, SnapshotLayout.of(into))
    expected = torch.maximum(torch.maximum(models[0]["n"], models[1]["n"]), models[2]["n"])
    assert torch.equal(into["n"], expected)


def test_bool_is_true_where_one_is() -> None:
    models = [{"b": torch.tensor([True, False, False])}, {"b": torch.tensor([False, False, True])}]
    into = {"b": torch.ones(3, dtype=torch.bool)}
    with donors(models) as remotes:
        assert average(remotes, [0.5, 0.5], into, SnapshotLayout.of(into))
    assert into["b"].tolist() == [True, False, True]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 4096, COUNT - 1])
def test_a_donor_that_is_not_finite_is_named_and_nothing_changes(
    dtype: torch.dtype, poison: float, place: int
) -> None:
    models = [{"a": torch.ones(5, dtype=dtype), "w": torch.ones(COUNT, dtype=dtype)} for _ in range(3)]
    models[1]["w"][place] = poison
    into = {"a": torch.zeros(5, dtype=dtype), "w": torch.zeros(COUNT, dtype=dtype)}
    layout = SnapshotLayout.of(into)
    with donors(models) as remotes:
        with pytest.raises(NotFinite, match=r'"w" .* of process \d+ \(donor 1\) is not finite') as raised:
            average(remotes, [0.5, 0.25, 0.25], into, layout)
        assert raised.value.donor == 1
        with pytest.raises(NotFinite, match=r"\(donor 0\)"):
            average([remotes[1]], [1.0], into, layout)
        assert not into["w"].any()
        assert not into["a"].any()
        assert average([remotes[0], remotes[2]], [0.5, 0.5], into, layout)
    assert into["w"].eq(1).all()


def test_a_sum_beyond_its_dtype_is_refused() -> None:
    models = [{"w": torch.full((9,), 60_000.0, dtype=torch.float16)} for _ in range(2)]
    into = {"w": torch.zeros(9, dtype=torch.float16)}
    with donors(models) as remotes, pytest.raises(NotFinite, match=r'sum of "w" .* exceeds its dtype'):
        average(remotes, [1.0, 1.0], into, SnapshotLayout.of(into))
    assert not into["w"].any()


def test_large_values_are_finite_though_their_sum_is_not() -> None:
    tensors = {"w": torch.full((COUNT,), 3e38)}
    into = {"w": torch.zeros(COUNT)}
    with donors([tensors, tensors]) as remotes:
        assert average([remotes[0]], [1.0], into, SnapshotLayout.of(into))
        assert average(remotes, [0.5, 0.5], into, SnapshotLayout.of(into))
    assert into["w"].eq(torch.tensor(3e38)).all()


def test_a_donor_that_has_published_nothing_gives_none() -> None:
    into = {"w": torch.zeros(3)}
    layout = SnapshotLayout.of(into)
    with (
        Window(layout) as empty,
        RemoteWindow.open(empty.address) as remote,
        donors([{"w": torch.ones(3)}]) as [ready],
    ):
        assert average([ready, remote], [0.5, 0.5], into, layout) is None
        assert not into["w"].any()


def test_models_that_differ_are_named() -> None:
    into = {"w": torch.zeros(3)}
    said = r'models differ: "w": float32 \[3\] here, float32 \[4\] in process \d+'
    with donors([{"w": torch.ones(4)}]) as remotes, pytest.raises(ConfigError, match=said):
        average(remotes, [1.0], into, SnapshotLayout.of(into))


@pytest.mark.parametrize("weights", [[], [0.5, 0.5], [0.0], [-1.0], [float("nan")], [float("inf")]])
def test_weights_that_are_none_are_refused(weights: list[float]) -> None:
    into = {"w": torch.zeros(3)}
    with donors([{"w": torch.ones(3)}]) as remotes, pytest.raises(ConfigError, match="need"):
        average(remotes, weights, into, SnapshotLayout.of(into))


def test_scratch_is_used_again_and_checked() -> None:
    into = {"w": torch.zeros(3), "n": torch.zeros(2, dtype=torch.int64)}
    layout = SnapshotLayout.of(into)
    scratch = layout.scratch()
    with donors([{"w": torch.ones(3), "n": torch.ones(2, dtype=torch.int64)}]) as remotes:
        for _ in range(2):
            assert average(remotes, [1.0], into, layout, scratch=scratch)
        assert layout.views(scratch)[0].tolist() == [1, 1, 1]
        for wrong in (scratch[1:], scratch.view(torch.int8), torch.zeros(2 * layout.n_bytes).byte()[::2]):
            with pytest.raises(ConfigError, match="scratch is"):
                average(remotes, [1.0], into, layout, scratch=wrong)


def test_what_was_fetched_is_applied_later_or_not_at_all() -> None:
    into = {"w": torch.zeros(3), "n": torch.zeros(2, dtype=torch.int64)}
    layout = SnapshotLayout.of(into)
    with donors([{"w": torch.ones(3), "n": torch.ones(2, dtype=torch.int64)}]) as remotes:
        fetched = fetch(remotes, [1.0], layout)
    assert fetched is not None
    assert [header.version for header in fetched.headers] == [1]
    assert not into["w"].any()
    with pytest.raises(ConfigError, match="do not fit the snapshot"):
        fetched.apply({"w": into["w"], "n": torch.zeros(2)})
    assert not into["w"].any()
    fetched.apply(into)
    assert into["w"].eq(1).all()
    assert into["n"].eq(1).all()


def test_parameters_are_replaced_in_place_and_autograd_learns_it() -> None:
    linear = torch.nn.Linear(3, 2)
    transposed = torch.zeros(4, 5).T  # not contiguous
    into = {**dict(linear.named_parameters()), "t": transposed}
    layout = SnapshotLayout.of(into)
    source = {name: torch.randn(tensor.shape) for name, tensor in into.items()}
    weight, address = linear.weight, linear.weight.data_ptr()
    loss = (linear.weight.sin() ** 2).sum()
    with donors([source]) as remotes:
        assert average(remotes, [1.0], into, layout)
    assert linear.weight is weight
    assert weight.data_ptr() == address
    for name, tensor in into.items():
        assert torch.equal(tensor, source[name])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("dtype", FLOATS)
def test_tensors_that_are_taken_as_they_are_may_be_infinite(dtype: torch.dtype) -> None:
    """Masks of attention are buffers of -inf; they must not end a replacement. NaN elsewhere must."""
    mask = torch.tensor([0.0, -torch.inf, torch.nan]).to(dtype)
    models = [
        {"a": torch.full((3,), float(i)).to(dtype), "m": mask, "z": torch.ones(2).to(dtype)} for i in (1, 3)
    ]
    into = {name: torch.zeros_like(tensor) for name, tensor in models[0].items()}
    layout = SnapshotLayout.of(into)
    assert layout.runs_apart({"m"}) == (
        [(entry.offset, len(models[0][entry.names[0]]), entry.dtype) for entry in layout.tensors[::2]],
        [(layout.tensors[1].offset, 3, layout.tensors[1].dtype)],
    )
    with donors(models) as remotes:
        with pytest.raises(NotFinite, match='"m"'):
            average(remotes, [0.5, 0.5], into, layout)
        assert average(remotes, [0.5, 0.5], into, layout, as_is={"m"})
    torch.testing.assert_close(into, {**models[0], "a": torch.full((3,), 2.0).to(dtype)}, equal_nan=True)
    models[1]["z"][1] = torch.nan
    with donors(models) as remotes, pytest.raises(NotFinite, match='"z"'):
        average(remotes, [0.5, 0.5], into, layout, as_is={"m"})


def test_shards_are_published_and_replaced_in_place() -> None:
    whole = torch.arange(12.0).reshape(4, 3)
    into = {"w": torch.nn.Parameter(shard_of_two(torch.zeros(4, 3), 1))}
    wrong = {"w": shard_of_two(whole, 0)}
    with donors([{"w": shard_of_two(whole, 1)}, wrong]) as remotes:
        loss = (into["w"] * into["w"]).sum()
        assert average(remotes[:1], [1.0], into, SnapshotLayout.of(into))
        assert into["w"].to_local().tolist() == whole[2:].tolist()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.to_local().backward()
        with pytest.raises(ConfigError, match=r"shard S\(0\) 1/2 here, .* shard S\(0\) 0/2 in process"):
            average(remotes[1:], [1.0], into, SnapshotLayout.of(into))
