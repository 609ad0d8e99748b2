"""Every reduction, to the bit, with every instruction set, at every alignment, beside plain torch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from reduce_reference import BITS, DTYPES, FLOATS, INTEGERS, OPS, bits, reduced, supported

from softs_fast import _kernels
from softs_fast.kernels import build_info

SETS = build_info().available
# Around one vector and four of them, of every width; several blocks of the plain loops.
COUNTS = [0, 1, 3, 8, 15, 16, 17, 33, 63, 64, 65, 130, 255, 257, 515]
SPECIALS = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    torch.inf,
    -torch.inf,
    torch.nan,
    3.4e38,
    65520.0,
    65519.0,
    6e-8,
    2.9e-8,
    1e-40,
]
GUARD = 0xA5


class Arena:
    """Bytes in which tensors are put at any address, and what lies around them is watched."""

    def __init__(self, n_bytes: int) -> None:
        self._bytes = np.full(n_bytes + 256, GUARD, np.uint8)
        self._base = -self._bytes.ctypes.data % 128
        self.address = self._bytes.ctypes.data + self._base

    def put(self, tensor: torch.Tensor, at: int) -> int:
        raw = bits(tensor).numpy().view(np.uint8)
        self._bytes[self._base + at : self._base + at + raw.size] = raw
        return self.address + at

    def take(self, dtype: torch.dtype, count: int, at: int) -> torch.Tensor:
        size = count * dtype.itemsize
        raw = self._bytes[self._base + at : self._base + at + size].copy()
        return torch.from_numpy(raw).view(dtype) if size else torch.empty(0, dtype=dtype)

    def untouched_but(self, start: int, n_bytes: int) -> bool:
        kept = np.delete(self._bytes, np.s_[self._base + start : self._base + start + n_bytes])
        return bool((kept == GUARD).all())


def values(dtype: str, count: int, seed: int) -> torch.Tensor:
    """Return [count] values: any bits at all, ordinary numbers, and what is special."""
    random = torch.Generator().manual_seed(seed)
    kind = getattr(torch, dtype)
    raw = torch.randint(0, 256, (count * kind.itemsize,), generator=random, dtype=torch.uint8)
    tensor = raw.view(BITS[kind.itemsize]).view(kind).clone() if count else torch.empty(0, dtype=kind)
    if dtype == "bool":
        # Not only 0 and 1: what other processes write is not checked.
        return torch.where(torch.rand(count, generator=random) < 0.5, raw, 0).view(torch.bool)
    if kind.is_floating_point:
        plain = torch.rand(count, generator=random) < 0.6
        tensor[plain] = torch.randn(count, generator=random, dtype=torch.float64).to(kind)[plain]
        special = torch.rand(count, generator=random) < 0.1
        chosen = torch.tensor(SPECIALS, dtype=torch.float64).to(kind)
        tensor[special] = chosen[torch.randint(0, len(SPECIALS), (count,), generator=random)][special]
    return tensor


def reduce_in_arenas(
    inputs: Sequence[torch.Tensor],
    op: str,
    scale: float,
    out_dtype: str,
    instruction_set: str,
    shift: int,
    out_shifts: Sequence[int],
    stream: bool,
) -> list[torch.Tensor]:
    """Reduce with each input `shift` bytes further off its alignment; checks that nothing but the outputs is written."""
    count, kind = len(inputs[0]), getattr(torch, out_dtype)
    arenas = [Arena(tensor.nbytes + 128) for tensor in inputs]
    targets = [Arena(count * kind.itemsize + 128) for _ in out_shifts]
    sources = [
        arena.put(tensor, shift * k) for k, (arena, tensor) in enumerate(zip(arenas, inputs, strict=True))
    ]
    _kernels.reduce(
        sources,
        [target.address + at for target, at in zip(targets, out_shifts, strict=True)],
        count,
        in_dtype=str(inputs[0].dtype).removeprefix("torch."),
        out_dtype=out_dtype,
        op=op,
        scale=scale,
        stream_stores=stream,
        instruction_set=instruction_set,
    )
    for k, (arena, tensor) in enumerate(zip(arenas, inputs, strict=True)):
        assert torch.equal(bits(arena.take(tensor.dtype, count, shift * k)), bits(tensor))
    for target, at in zip(targets, out_shifts, strict=True):
        assert target.untouched_but(at, count * kind.itemsize)
    return [target.take(kind, count, at) for target, at in zip(targets, out_shifts, strict=True)]


def check(
    inputs: Sequence[torch.Tensor],
    wanted: torch.Tensor,
    *,
    op: str = "sum",
    scale: float = 1.0,
    shift: int = 0,
    out_shifts: Sequence[int] = (0,),
    stream: bool = False,
) -> None:
    """Reduce with every instruction set; each must give the bits of `wanted`."""
    out_dtype = str(wanted.dtype).removeprefix("torch.")
    for instruction_set in SETS:
        for got in reduce_in_arenas(inputs, op, scale, out_dtype, instruction_set, shift, out_shifts, stream):
            differs = (bits(got) != bits(wanted)).nonzero().flatten().tolist()[:5]
            assert not differs, (
                f"{instruction_set}: {op} x {scale} of {len(inputs)} x {inputs[0].dtype} [{len(wanted)}], {shift} bytes off: "
                f"at {differs} {got[differs]} instead of {wanted[differs]}"
            )


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_as_torch_at_every_size_and_alignment(dtype: str) -> None:
    item = getattr(torch, dtype).itemsize
    for op, n, count in itertools.product(OPS, [1, 2, 3, 5], COUNTS):
        if supported(dtype, dtype, op):
            inputs = [values(dtype, count, seed=1000 * n + 10 * count + k) for k in range(n)]
            wanted = reduced(inputs, op, 1.0, dtype)
            for shift in (0, item, 1):
                check(inputs, wanted, op=op, shift=shift, out_shifts=[shift])


@pytest.mark.parametrize("in_dtype", [*FLOATS, *INTEGERS])
def test_scale_and_cast_give_the_bits_of_torch(in_dtype: str) -> None:
    for out_dtype, op, scale in itertools.product(DTYPES, OPS, (1.0, 0.3, -2.5, 1e300, float("nan"))):
        if supported(in_dtype, out_dtype, op):
            inputs = [values(in_dtype, 171, seed=k) for k in range(3)]
            check(inputs, reduced(inputs, op, scale, out_dtype), op=op, scale=scale, shift=2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_streaming_stores_the_same(dtype: str) -> None:
    """Outputs of one alignment are streamed to, others are not; most cases have a head and a tail."""
    item = getattr(torch, dtype).itemsize
    for count in (0, 1, 5, 40, 300):
        inputs = [values(dtype, count, seed=k) for k in range(2)]
        wanted = reduced(inputs, "sum", 1.0, dtype)
        for out_shifts in [(0,), (item,), (3,), (item, item, item), (0, item), (64, 0)]:
            check(inputs, wanted, out_shifts=out_shifts, stream=True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_16_bit_float_survives(dtype: str) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(getattr(torch, dtype))
    numbers = every[~every.isnan()]
    check([numbers], numbers)
    check([numbers], numbers.float())
    nans = every[every.isnan()]
    check([nans], torch.full_like(nans, torch.nan))


def test_halfway_cases_round_to_even() -> None:
    """Every seventh float32 that lies between two neighbours of 16 bits, and those beside it."""
    for kind, places in ((torch.bfloat16, 16), (torch.float16, 13)):
        low = torch.arange(0, 2**15 - 1, 7, dtype=torch.int16).view(kind).float()
        low = low[low.isfinite()].view(torch.int32)
        middle = torch.cat([low + (1 << (places - 1)) + beside for beside in (-1, 0, 1)]).view(torch.float32)
        check([middle], middle.to(kind))


def test_inputs_are_added_in_their_order() -> None:
    """1e30 - 1e30 + 1 is 1, and two halves of its last place come too late; another order gives something else."""
    columns = [torch.full((131,), value) for value in (1e30, -1e30, 1.0, 2.0**-24, 2.0**-24)]
    check(columns, torch.ones(131))


@pytest.mark.parametrize("dtype", FLOATS)
def test_minimum_and_maximum_keep_the_first_of_both_zeros(dtype: str) -> None:
    kind = getattr(torch, dtype)
    first = torch.tensor([0.0, -0.0, 0.0, -0.0] * 40, dtype=kind)
    second = torch.tensor([0.0, 0.0, -0.0, -0.0] * 40, dtype=kind)
    for op in ("min", "max"):
        check([first, second], first, op=op)


def test_16_bits_accumulate_in_float32() -> None:
    """In 16 bits 256 + 1 is 256 for bfloat16, and 2048 + 1 is 2048 for float16, however often 1 is added."""
    for kind, big in ((torch.bfloat16, 256), (torch.float16, 2048)):
        inputs = [torch.full((70,), big, dtype=kind), *[torch.ones(70, dtype=kind)] * 4]
        check(inputs, torch.full((70,), big + 4, dtype=kind))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_result_may_replace_an_input(dtype: str) -> None:
    for aliased, stream, instruction_set in itertools.product(range(3), (False, True), SETS):
        inputs = [values(dtype, 517, seed=k) for k in range(3)]
        wanted = reduced(inputs, "mean", 1.0, dtype)
        _kernels.reduce(
            [tensor.data_ptr() for tensor in inputs],
            [inputs[aliased].data_ptr()],
            517,
            in_dtype=dtype,
            out_dtype=dtype,
            op="mean",
            scale=1.0,
            stream_stores=stream,
            instruction_set=instruction_set,
        )
        assert torch.equal(bits(inputs[aliased]), bits(wanted)), f"{instruction_set} onto input {aliased}"
