"""Frames: what goes in is what is read, within the precision of the codec, and hostile ones are refused."""

from __future__ import annotations

import hashlib
import tracemalloc
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from softs_fast.errors import WireError
from softs_fast.paramserver.wire.codecs import BLOCK, encode_vector, import_zstd, top_k_count
from softs_fast.paramserver.wire.frame import Frame, check_header, decode_payload, encode_frame
from softs_fast.paramserver.wire.header import HEADER_BYTES, Codec, FrameHeader, Kind
from softs_fast.paramserver.wire.manifest import Entry, Manifest
from softs_fast.paramserver.wire.tensors import Contents, first_not_finite, load_into, of_module

JOB = bytes(range(16))
MANIFEST = Manifest(
    (Entry("a", "float32", (3, 257)), Entry("b", "bfloat16", ())),
    (Entry("mean", "float32", (5,)), Entry("count", "int64", ()), Entry("mask", "bool", (2,))),
)
N = MANIFEST.n_parameters


def contents(seed: int = 0) -> Contents:
    generator = torch.Generator().manual_seed(seed)
    return Contents(
        torch.randn(N, generator=generator),
        torch.randn(5, generator=generator),
        torch.randint(-9, 9, (3,), generator=generator),
    )


def push(given: Contents, codec: Codec, *, planes: bool = False, k: int = 0) -> Frame:
    return encode_frame(
        given, kind=Kind.GRADIENT, codec=codec, job=JOB, manifest=MANIFEST, timeline=3, version=7, samples=32,
        loss=0.5, planes=planes, k=k,
    )  # fmt: skip


def receive(frame: Frame, base: Tensor | None = None) -> Contents:
    """Do what a receiver does with the bytes of a frame."""
    header = FrameHeader.decode(frame.header.encode())
    assert header.encode() == frame.header.encode()
    check_header(header, MANIFEST, JOB)
    return decode_payload(header, bytes(frame.payload), MANIFEST, base=base)


@pytest.mark.parametrize("planes", [False, True])
@pytest.mark.parametrize("codec", [Codec.F32, Codec.BF16, Codec.INT8, Codec.TOP_K])
def test_a_push_is_read_as_it_was_written(codec: Codec, planes: bool) -> None:
    sent = contents()
    read = receive(push(sent, codec, planes=planes, k=100))
    assert read.floats is not None
    assert read.integers is not None
    assert torch.equal(read.floats, sent.floats)  # type: ignore[arg-type]
    assert torch.equal(read.integers, sent.integers)  # type: ignore[arg-type]
    error = (read.parameters - sent.parameters).abs()
    if codec is Codec.F32:
        assert torch.equal(read.parameters, sent.parameters)
    elif codec is Codec.BF16:
        assert torch.equal(read.parameters, sent.parameters.bfloat16().float())
    elif codec is Codec.INT8:
        for block, wrong in zip(sent.parameters.split(BLOCK), error.split(BLOCK), strict=True):
            assert wrong.max() <= block.abs().max() / 127 * 0.5001
    else:
        kept = read.parameters != 0
        assert kept.sum() == 100
        assert torch.equal(read.parameters[kept], sent.parameters[kept])
        assert sent.parameters[kept].abs().min() >= sent.parameters[~kept].abs().max()


@pytest.mark.parametrize("planes", [False, True])
@pytest.mark.parametrize("has_buffers", [False, True])
@pytest.mark.parametrize("codec", [Codec.F32, Codec.BF16, Codec.INT8, Codec.TOP_K])
def test_a_push_says_which_parameters_have_no_gradient(codec: Codec, has_buffers: bool, planes: bool) -> None:
    sent = contents() if has_buffers else Contents(contents().parameters)
    sent.parameters[MANIFEST.parameter_slices[1]] = 0
    sent.present = (True, False)
    frame = push(sent, codec, planes=planes, k=100)
    read = receive(frame)
    assert read.present == (True, False)
    whole = receive(push(replace(sent, present=None), codec, planes=planes, k=100))
    assert whole.present is None
    assert torch.equal(read.parameters, whole.parameters)
    assert (read.integers is not None) == has_buffers
    if has_buffers:
        assert torch.equal(read.integers, sent.integers)  # type: ignore[arg-type]
    if not planes:
        payload = bytearray(frame.payload)
        payload[-1] = 2
        header = replace(frame.header, digest=hashlib.sha256(payload).digest())
        with pytest.raises(WireError, match="a byte other than 0 and 1"):
            decode_payload(header, payload, MANIFEST)


@pytest.mark.parametrize("planes", [False, True])
def test_weights_travel_as_what_changed(planes: bool) -> None:
    before, after = contents(1), contents(2)
    after.parameters = before.parameters + 1e-3 * after.parameters
    frame = encode_frame(
        after, kind=Kind.WEIGHTS, codec=Codec.XOR, job=JOB, manifest=MANIFEST, timeline=1, version=8, planes=planes,
        base=(7, before.parameters),
    )  # fmt: skip
    read = receive(frame, before.parameters)
    assert torch.equal(read.parameters.view(torch.int32), after.parameters.view(torch.int32))
    if planes:
        assert len(frame.payload) < frame.header.decoded_bytes
    with pytest.raises(WireError, match="needs version 7, which is not held"):
        receive(frame)


def test_contents_of_a_module_and_back() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.Linear(4, 2, dtype=torch.float64))

    one, two = model(), model()
    manifest = Manifest.of(one)
    assert [entry.name for entry in manifest.integer_buffers] == ["1.num_batches_tracked"]
    one[1](torch.randn(2, 3, 4, 4))  # type: ignore[index]
    load_into(two, manifest, of_module(one, manifest))
    for name, value in one.state_dict().items():
        assert torch.equal(two.state_dict()[name], value.float().to(value.dtype)), name


@pytest.mark.parametrize("codec", [Codec.F32, Codec.BF16, Codec.INT8, Codec.TOP_K])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("index", [0, 300, N - 1])
def test_a_tensor_that_is_not_finite_is_named(codec: Codec, bad: float, index: int) -> None:
    sent = contents()
    assert first_not_finite(sent, MANIFEST) is None
    sent.parameters[index] = bad
    read = receive(push(sent, codec, k=50))
    name = first_not_finite(read, MANIFEST)
    # The scale of a block is not finite with any of its elements, and the last block has elements of both.
    assert name == ("b" if index == N - 1 and codec is not Codec.INT8 else "a")


def test_buffers_and_large_numbers() -> None:
    sent = contents()
    sent.parameters[:] = 3e38  # the square is no float32
    assert first_not_finite(sent, MANIFEST) is None
    assert sent.floats is not None
    sent.floats[2] = torch.nan
    assert first_not_finite(sent, MANIFEST) == "mean"


def test_int8_of_the_smallest_and_the_greatest() -> None:
    for value in (0.0, 1e-45, -1e-45, 1e-38, 3.3e38):
        vector = torch.full((300,), value)
        data = encode_vector(vector, Codec.INT8)
        assert len(data) == 8 + 300
        sent = contents()
        sent.parameters[:] = value
        read = receive(push(sent, Codec.INT8))
        assert first_not_finite(read, MANIFEST) is None
        assert (read.parameters - value).abs().max() <= max(abs(value) * 1e-6, 1e-42)


@pytest.mark.parametrize("indices", [[1, 0], [2, 2], [0, N], [-1, 1]])
def test_indices_that_do_not_ascend_are_refused(indices: list[int]) -> None:
    vector = torch.tensor(indices, dtype=torch.int32).view(torch.uint8).tolist()
    frame = encode_frame(
        contents(), kind=Kind.GRADIENT, codec=Codec.TOP_K, job=JOB, manifest=MANIFEST, timeline=1, version=1, samples=1,
        k=2,
    )  # fmt: skip
    with pytest.raises(WireError, match="2 indices of a top-k frame do not ascend from 0"):
        receive(sealed(frame, bytes(vector) + bytes(frame.payload[8:])))


def test_fractions_of_top_k() -> None:
    assert [top_k_count(1000, f) for f in (1e-9, 0.01, 1.0)] == [1, 10, 1000]
    assert top_k_count(3, 0.5) == 2


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"job": bytes(16)}, "is of the job 0000"),
        ({"manifest": bytes(16)}, "is of the model 0000"),
        (
            {"decoded_bytes": 1 << 40, "encoded_bytes": 1 << 40},
            r"has 1099511627776 bytes; the manifest needs",
        ),
        ({"has_buffers": False}, "the manifest needs"),
        ({"planes": True, "encoded_bytes": 1 << 20}, "at most for what it holds"),
    ],
)
def test_headers_that_lie_are_refused(change: dict[str, object], text: str) -> None:
    header = replace(push(contents(), Codec.F32).header, **change)  # type: ignore[arg-type]
    with pytest.raises(WireError, match=text):
        check_header(FrameHeader.decode(header.encode()), MANIFEST, JOB)


def test_lengths_of_top_k_are_bounded_by_the_manifest() -> None:
    for n_bytes in (8 * N + 8, 8 * N + 1, 7, 0):
        header = push(contents(), Codec.TOP_K, k=2).header
        rest = header.decoded_bytes - 16
        lying = replace(header, decoded_bytes=n_bytes + rest, encoded_bytes=n_bytes + rest)
        with pytest.raises(WireError, match="the manifest needs"):
            check_header(lying, MANIFEST, JOB)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"samples": 0}, "is of 0 samples"),
        ({"loss": float("inf")}, "the loss of a frame is infinite"),
        ({"codec": Codec.XOR}, "GRADIENT cannot have the codec XOR"),
        ({"kind": Kind.WEIGHTS, "samples": 0, "codec": Codec.INT8}, "WEIGHTS cannot have the codec INT8"),
        ({"base": 3}, "only XOR has one"),
        ({"kind": Kind.WEIGHTS, "samples": 0, "codec": Codec.XOR, "base": 7}, "need an earlier one"),
        ({"encoded_bytes": 3}, "a frame without zstd has 3 bytes"),
        ({"timeline": 1 << 32}, "cannot be written"),
    ],
)
def test_headers_that_contradict_themselves_are_refused(change: dict[str, object], text: str) -> None:
    header = push(contents(), Codec.F32).header
    with pytest.raises(WireError, match=text):
        replace(header, **change).encode()  # type: ignore[arg-type]


def test_zeros_of_a_header_are_checked() -> None:
    whole = push(contents(), Codec.F32).header.encode()
    for at in (76, 77, 78, 79):
        bad = bytearray(whole)
        assert not bad[at]
        bad[at] = 1
        with pytest.raises(WireError, match="where zeros belong"):
            FrameHeader.decode(bad)
    for at, text in (
        (0, "begins with"),
        (4, "has protocol"),
        (5, "unknown kind"),
        (6, "unknown kind"),
        (7, "flags"),
    ):
        bad = bytearray(whole)
        bad[at] = 0x77
        with pytest.raises(WireError, match=text):
            FrameHeader.decode(bad)


def test_a_push_names_the_lease_of_its_samples() -> None:
    header = replace(push(contents(), Codec.F32).header, lease=(1 << 32) - 1)
    assert header.encode()[44:48] == bytes([255] * 4)
    assert FrameHeader.decode(header.encode()) == header
    with pytest.raises(WireError, match="cannot be written"):
        replace(header, lease=1 << 32).encode()
    with pytest.raises(WireError, match="only a push has one"):
        replace(header, kind=Kind.WEIGHTS, samples=0, lease=1).encode()


@given(data=st.binary(min_size=0, max_size=HEADER_BYTES + 8))
def test_any_bytes_are_a_header_or_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        FrameHeader.decode(data)


@given(at=st.integers(0, HEADER_BYTES - 1), bit=st.integers(0, 7), planes=st.booleans())
def test_a_header_with_a_changed_bit_is_refused_or_read_as_written(at: int, bit: int, planes: bool) -> None:
    frame = push(contents(), Codec.BF16, planes=planes)
    bad = bytearray(frame.header.encode())
    bad[at] ^= 1 << bit
    try:
        header = FrameHeader.decode(bad)
        assert header.encode() == bytes(bad)
        check_header(header, MANIFEST, JOB)
        decode_payload(header, frame.payload, MANIFEST)
    except WireError:
        return
    # What is left are numbers that nothing here can know; the signature covers them.
    known = ("kind", "timeline", "version", "samples", "loss", "lease")
    assert any(getattr(header, name) != getattr(frame.header, name) for name in known)


def sealed(frame: Frame, payload: bytes) -> Frame:
    """The frame with another payload, and a header that fits its length and digest."""
    digest = hashlib.sha256(payload).digest()
    return Frame(replace(frame.header, encoded_bytes=len(payload), digest=digest), payload)


@given(data=st.data(), codec=st.sampled_from([Codec.F32, Codec.BF16, Codec.INT8, Codec.TOP_K]))
def test_a_changed_payload_is_refused_or_has_the_shape_of_the_manifest(
    data: st.DataObject, codec: Codec
) -> None:
    frame = push(contents(), codec, planes=True, k=20)
    payload = bytearray(frame.payload)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(payload) - 1))
        payload[at] = data.draw(st.integers(0, 255))
    payload = payload[: data.draw(st.integers(1, len(payload)))]
    bad = sealed(frame, bytes(payload))
    try:
        read = receive(bad)
    except WireError:
        return
    assert read.parameters.shape == (N,)
    assert read.parameters.dtype == (torch.bfloat16 if codec is Codec.BF16 else torch.float32)


def test_a_changed_payload_has_another_digest() -> None:
    frame = push(contents(), Codec.F32)
    payload = bytearray(frame.payload)
    payload[5] ^= 1
    with pytest.raises(WireError, match="SHA-256 of a payload"):
        decode_payload(frame.header, payload, MANIFEST)
    with pytest.raises(WireError, match=r"has 12 bytes; its header says"):
        decode_payload(frame.header, payload[:12], MANIFEST)


def test_bombs_are_refused_in_constant_memory() -> None:
    zstd = import_zstd()
    # 1 GiB of zeros in 33 kB, a window of 128 MiB, and two frames one behind the other.
    compressor = zstd.ZstdCompressor()
    zeros = bytes(1 << 20)
    bomb = b"".join(compressor.compress(zeros) for _ in range(1024)) + compressor.flush()
    wide = {zstd.CompressionParameter.window_log: 27, zstd.CompressionParameter.compression_level: 1}
    compressor = zstd.ZstdCompressor(options=wide)
    window = compressor.compress(zeros) + compressor.flush()
    frame = push(contents(), Codec.F32, planes=True)
    twice = bytes(frame.payload) + zstd.compress(b"more")
    for payload, text in ((bomb, "becomes longer"), (window, "with a window of"), (twice, "has more behind")):
        bad = sealed(frame, payload)
        tracemalloc.start()
        with pytest.raises(WireError, match=text):
            decode_payload(bad.header, bad.payload, MANIFEST)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2 << 20


def test_a_payload_that_ends_early_is_refused() -> None:
    frame = push(contents(), Codec.F32, planes=True)
    for n in (0, 1, 5, len(frame.payload) - 1):
        with pytest.raises(WireError, match=r"ends after|is not zstd"):
            receive(sealed(frame, bytes(frame.payload[:n])))
