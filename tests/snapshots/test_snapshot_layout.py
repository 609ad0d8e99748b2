"""The layout of a snapshot: canonical, each memory once, and checked where it comes from another process."""

import hashlib
import json
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from meshes import shard_of_two
from torch import Tensor

from softs_fast.errors import ConfigError, SegmentError
from softs_fast.snapshots import SnapshotLayout

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
]

shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
models = st.dictionaries(st.text(max_size=6), st.tuples(st.sampled_from(DTYPES), shapes), max_size=8)


def tensors_of(model: dict[str, tuple[torch.dtype, tuple[int, ...]]]) -> dict[str, Tensor]:
    return {name: torch.zeros(shape, dtype=dtype) for name, (dtype, shape) in model.items()}


@given(models, st.randoms(use_true_random=False))
def test_it_does_not_depend_on_the_order_of_names(
    model: dict[str, tuple[torch.dtype, tuple[int, ...]]], chance: random.Random
) -> None:
    tensors = tensors_of(model)
    names = list(tensors)
    chance.shuffle(names)
    layout = SnapshotLayout.of(tensors)
    other = SnapshotLayout.of({name: tensors[name] for name in names})
    assert layout == other
    assert layout.digest == other.digest == hashlib.sha256(layout.manifest).digest()
    assert layout.difference(other) == ""


@given(models)
def test_tensors_lie_apart_on_cache_lines_by_dtype(
    model: dict[str, tuple[torch.dtype, tuple[int, ...]]],
) -> None:
    layout = SnapshotLayout.of(tensors_of(model))
    end = 0
    for entry in layout.tensors:
        assert entry.offset % 64 == 0
        assert entry.offset >= end
        end = entry.offset + entry.n_bytes
    assert end <= layout.n_bytes
    covered = {
        (entry.names, dtype)
        for entry in layout.tensors
        for at, count, dtype in layout.runs
        if at <= entry.offset
        and entry.offset + entry.n_bytes <= at + count * entry.torch_dtype.itemsize
        and entry.dtype == dtype
    }
    assert covered == {(entry.names, entry.dtype) for entry in layout.tensors}
    assert len(layout.runs) == len({entry.dtype for entry in layout.tensors})


@given(models)
def test_a_manifest_is_parsed_to_the_same_layout(
    model: dict[str, tuple[torch.dtype, tuple[int, ...]]],
) -> None:
    layout = SnapshotLayout.of(tensors_of(model))
    assert SnapshotLayout.parse(layout.manifest).tensors == layout.tensors


def test_tied_tensors_are_stored_once() -> None:
    weight = torch.zeros(4, 3)
    tied = {"head": weight, "embedding": weight, "transposed": weight.T, "bias": torch.zeros(4)}
    layout = SnapshotLayout.of(tied)
    assert [entry.names for entry in layout.tensors] == [("bias",), ("embedding", "head"), ("transposed",)]
    untied = SnapshotLayout.of({name: tensor.clone() for name, tensor in tied.items()})
    assert layout != untied
    assert layout.difference(untied, "on rank 0", "on rank 1").startswith(
        '"embedding": float32 [4, 3], tied to "head" on rank 0, float32 [4, 3] on rank 1'
    )
    with pytest.raises(ConfigError, match=r'"embedding": float32 \[4, 3\], tied to "head" in the snapshot'):
        layout.bind({name: tensor.clone() for name, tensor in tied.items()})
    assert layout.bind(tied)[1] is weight


def test_empty_tensors_are_not_tied() -> None:
    layout = SnapshotLayout.of({"a": torch.zeros(0), "b": torch.zeros(0)})
    assert [entry.names for entry in layout.tensors] == [("a",), ("b",)]


def test_differences_name_tensors_and_places() -> None:
    ours = SnapshotLayout.of({"a": torch.zeros(2), "b": torch.zeros(3), "c": torch.zeros(1)})
    theirs = SnapshotLayout.of({"a": torch.zeros(2).half(), "b": torch.zeros(3, 1), "d": torch.zeros(1)})
    assert ours.difference(theirs, "on rank 0", "on rank 3") == (
        '"a": float32 [2] on rank 0, float16 [2] on rank 3; '
        '"b": float32 [3] on rank 0, float32 [3, 1] on rank 3; '
        '"c": float32 [1] on rank 0, absent on rank 3; and 1 more'
    )


@pytest.mark.parametrize(
    "given_",
    [
        {"w": torch.zeros(3)},
        {"w": torch.zeros(2).half()},
        {"v": torch.zeros(2)},
        {},
        {"w": torch.zeros(2), "v": torch.zeros(1)},
    ],
)
def test_tensors_that_do_not_fit_are_refused(given_: dict[str, Tensor]) -> None:
    with pytest.raises(ConfigError, match=r'do not fit the snapshot: "[vw]": .* in the snapshot, .* given'):
        SnapshotLayout.of({"w": torch.zeros(2)}).bind(given_)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(2, dtype=torch.complex64),
        torch.zeros(2).to_sparse(),
        torch.zeros(2, device="meta"),
        torch.zeros(2, dtype=torch.float8_e4m3fn),
    ],
)
def test_tensors_that_snapshots_cannot_hold_are_refused(tensor: Tensor) -> None:
    with pytest.raises(ConfigError, match=r'tensor "w" is .*; expected a dense tensor'):
        SnapshotLayout.of({"w": tensor})


def test_shards_are_parts_of_the_layout_that_only_the_same_shard_has() -> None:
    whole = torch.arange(12.0).reshape(4, 3)
    first, second = (SnapshotLayout.of({"w": shard_of_two(whole, rank)}) for rank in (0, 1))
    assert (str(first.tensors[0]), first.n_bytes) == ("float32 [2, 3], shard S(0) 0/2", 64)
    assert first.difference(second) == (
        '"w": float32 [2, 3], shard S(0) 0/2 here, float32 [2, 3], shard S(0) 1/2 there'
    )
    assert (
        SnapshotLayout.parse(first.manifest) == first == SnapshotLayout.of({"w": shard_of_two(whole + 1, 0)})
    )
    for other in ({"w": shard_of_two(whole, 1)}, {"w": whole}):
        with pytest.raises(ConfigError, match="do not fit"):
            first.bind(other)
        with pytest.raises(ConfigError, match='tensor "w"'):
            first.bind_part(other)


GOOD = [["float32", [2], ["a", "b"]], ["int8", [], ["c"]]]


@pytest.mark.parametrize(
    "rows",
    [
        {},
        [1],
        [["float32", [2]]],
        [["float32", [2], ["a"], 1]],
        [["float32", [2], ["a"], ""]],
        [["float32", [2], ["a"], "x", "y"]],
        [["float31", [2], ["a"]]],
        [[["float32"], [2], ["a"]]],
        [["float32", [-1], ["a"]]],
        [["float32", [True], ["a"]]],
        [["float32", [1.5], ["a"]]],
        [["float32", [1 << 40, 1 << 40], ["a"]]],
        [["float32", [1 << 41], ["a"]]],
        [["float32", 2, ["a"]]],
        [["float32", [2], []]],
        [["float32", [2], [1]]],
        [["float32", [2], ["a", "a"]]],
        [["float32", [2], ["a"]], ["float32", [2], ["a"]]],
        [*reversed(GOOD)],
        [["float32", [2], ["b", "a"]]],
    ],
)
def test_manifests_that_are_malformed_are_refused(rows: object) -> None:
    with pytest.raises(SegmentError, match="manifest of a snapshot is malformed"):
        SnapshotLayout.parse(json.dumps(rows, separators=(",", ":")).encode())


@given(st.binary(max_size=60) | st.sampled_from([b"[" * 100_000, json.dumps(GOOD).encode(), b"[[NaN]]"]))
def test_manifests_of_any_bytes_are_refused(manifest: bytes) -> None:
    if manifest != b"[]":
        with pytest.raises(SegmentError, match="malformed"):
            SnapshotLayout.parse(manifest)
