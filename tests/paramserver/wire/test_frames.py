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
from softs_fast.paramserver.wire.codecs import BLOCK, encode_vector, top_k_count
from softs_fast.paramserver.wire.frame import Frame, check_header, decode_payload, encode_frame
from softs_fast.paramserver.wire.header import HEADER_BYTES, Codec, FrameHeader, Kind
from softs_fast.paramserver.wire.manifest import Entry, Manifest
from softs_fast.paramserver.wire.planes import import_zstd
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
    assert header == frame.header
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
