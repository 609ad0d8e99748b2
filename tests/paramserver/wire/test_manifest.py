"""Manifests: canonical JSON, the first difference in words, and what is refused."""

from __future__ import annotations

import json
import re
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from softs_fast.errors import ConfigError, WireError
from softs_fast.paramserver.wire.frame import check_header, decode_payload, encode_frame
from softs_fast.paramserver.wire.header import Codec, Kind
from softs_fast.paramserver.wire.limits import MAX_MANIFEST_BYTES
from softs_fast.paramserver.wire.manifest import Entry, Manifest
from softs_fast.paramserver.wire.tensors import Contents, first_not_finite, load_into, of_module

MODEL = Manifest((Entry("w", "float32", (2, 3)), Entry("b", "float32", (3,))), (Entry("n", "int64", ()),))


def test_a_manifest_is_read_as_it_was_written() -> None:
    assert Manifest.decode(MODEL.encoded) == MODEL
    assert Manifest.decode(MODEL.encoded).digest == MODEL.digest
    assert (MODEL.n_parameters, MODEL.n_floats, MODEL.n_integers) == (9, 0, 1)
    for at, name in ((0, "w"), (5, "w"), (6, "b"), (8, "b")):
        flat = torch.zeros(9)
        flat[at] = torch.nan
        assert first_not_finite(Contents(flat), MODEL) == name


def test_only_what_is_trained_or_kept_travels() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1, bias=False))
    module[0].bias.requires_grad_(False)
    module.register_buffer("scratch", torch.zeros(3), persistent=False)
    module[2].weight = nn.Parameter(torch.zeros(1, 2))
    manifest = Manifest.of(module)
    assert [entry.name for entry in manifest.parameters] == ["0.weight", "1.weight", "1.bias", "2.weight"]
    assert [entry.name for entry in manifest.buffers] == [
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
    ]


def holding(tensor: Tensor) -> nn.Module:
    module = nn.Linear(2, 2)
    module.weight = nn.Parameter(tensor)
    return module


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (nn.ReLU(), "nothing to train"),
        (nn.Linear(2, 2, dtype=torch.complex64), '"weight" is complex64'),
        (nn.LazyLinear(3), "not initialized"),
        (nn.Linear(2, 2, device="meta"), '"weight" is on the meta device'),
        (holding(torch.ones(2).to(torch.float8_e4m3fn)), '"weight" is float8_e4m3fn'),
        (holding(torch.ones(1, 2).expand(3, 2)), '"weight" is .* elements share memory'),
        (holding(torch.eye(2).to_sparse()), '"weight" is of layout sparse_coo'),
    ],
)
def test_modules_that_cannot_travel_are_refused(module: nn.Module, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Manifest.of(module)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        (
            (Entry("w", "float32", (2, 4)), MODEL.parameters[1]),
            r"parameter 0: the server has w \(float32 \[2, 3\]\), the worker has w \(float32 \[2, 4\]\)",
        ),
        (
            MODEL.parameters[:1],
            r"the server has 2 parameters, the worker has 1; the first that only the server has is b",
        ),
        ((*MODEL.parameters, Entry("z", "float16", ())), r"only the worker has is z \(float16 \[\]\)"),
    ],
)
def test_the_first_difference_is_named(parameters: tuple[Entry, ...], text: str) -> None:

    difference = MODEL.first_difference(Manifest(parameters, MODEL.buffers))
    assert difference is not None
    assert re.search(text, difference)
    assert MODEL.first_difference(Manifest(MODEL.parameters, MODEL.buffers)) is None


def text_of(parameters: object, buffers: object = ()) -> bytes:
    value = {"buffers": list(buffers), "parameters": parameters}  # type: ignore[call-overload]
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"[" * 100_000, "Expected object, got array"),
        (b"\xff", "malformed"),
        (b'{"parameters":[["a","float32",[1]]]}', "not written in its canonical form"),
        (text_of([]), "0 elements of parameters"),
        (text_of(3), r"parameters: Expected array, got int"),
        (text_of([["a", "int64", [1]]]), r"has the parameter a \(int64 \[1\]\); dtypes are float32"),
        (text_of([["a", "int3", [1]]]), r"parameters\[0\]\.dtype: Invalid enum value 'int3'"),
        (text_of([["a", "float32", [1], 2]]), "Manifest: Expected array of at most length 3"),
        (text_of([["a", "float32", [-1]]]), r"shape\[0\]: Expected int >= 0"),
        (text_of([["a", "float32", [True]]]), r"shape\[0\]: Expected int, got bool"),
        (text_of([["a", "float32", [1 << 31]]]), r"shape\[0\]: Expected int <= 2147483647"),
        (text_of([["a", "float32", [1 << 30, 1 << 30]]]), "elements of parameters"),
        (text_of([["a", "float32", [1] * 17]]), "shape: Expected array of length <= 16"),
        (text_of([["a", "float32", [1]], ["a", "float32", [1]]]), "has the tensor a twice"),
        (text_of([["a" * 513, "float32", [1]]]), r"name: Expected str of length <= 512"),
        (text_of([["a", "float32", [1]]]) + b" ", "not written in its canonical form"),
        (b" " * (MAX_MANIFEST_BYTES + 1), f"at most {MAX_MANIFEST_BYTES:,}"),
    ],
)
def test_bad_manifests_are_refused(data: bytes, text: str) -> None:
    tracemalloc.start()
    with pytest.raises(WireError, match=text):
        Manifest.decode(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20


@given(
    at=st.integers(0, len(MODEL.encoded) - 1),
    byte=st.integers(0, 255),
    cut=st.integers(0, len(MODEL.encoded)),
)
def test_a_changed_manifest_is_refused_or_another(at: int, byte: int, cut: int) -> None:
    data = bytearray(MODEL.encoded)
    data[at] = byte
    for changed in (bytes(data), bytes(data[:cut])):
        try:
            read = Manifest.decode(changed)
        except WireError:
            continue
        assert read.encoded == changed
        assert (read == MODEL) == (changed == MODEL.encoded)


def test_a_sharded_model_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a DTensor, `local_tensor` returns another tensor, which is the shard of this process."""
    monkeypatch.setattr(
        "softs_fast.paramserver.wire.manifest.local_tensor", lambda name, tensor, **more: tensor.detach()
    )
    with pytest.raises(ConfigError, match='parameter "weight" is a DTensor'):
        Manifest.of(nn.Linear(2, 2))


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("codec", [Codec.F32, Codec.BF16, Codec.INT8, Codec.TOP_K])
def test_tensors_of_no_length_travel(codec: Codec) -> None:
    module = nn.Sequential(nn.Linear(0, 3), nn.Linear(3, 0), nn.Linear(3, 2), nn.BatchNorm1d(0))
    manifest = Manifest.of(module)
    sent = of_module(module, manifest)
    frame = encode_frame(
        sent,
        kind=Kind.GRADIENT,
        codec=codec,
        job=bytes(16),
        manifest=manifest,
        timeline=1,
        version=0,
        samples=1,
        k=11,
    )
    check_header(frame.header, manifest, bytes(16))
    found = decode_payload(frame.header, frame.payload, manifest)
    assert torch.allclose(found.parameters.float(), sent.parameters, atol=0.01)
    load_into(module, manifest, replace(found, parameters=found.parameters.float()))
    assert first_not_finite(found, manifest) is None


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda one: setattr(one, "weight", nn.Parameter(torch.ones(2, 3))),
            r"has the shape \[2, 3\], expected \[3, 2\]",
        ),
        (lambda one: setattr(one.weight, "data", torch.ones(2)), r"has the shape \[2\], expected"),
        (lambda one: nn.utils.parametrizations.weight_norm(one), "is missing from the module"),
        (lambda one: one.to("meta"), "is on the meta device"),
    ],
)
def test_tensors_that_a_module_has_replaced_are_refused_by_name(change: Any, text: str) -> None:
    """A copy would broadcast, or mix up elements."""
    module = nn.Linear(2, 3)
    manifest = Manifest.of(module)
    before = of_module(module, manifest)
    change(module)
    for use in (lambda: of_module(module, manifest), lambda: load_into(module, manifest, before)):
        with pytest.raises(ConfigError, match=f'parameter "weight" {text}'):
            use()
