"""The reduce kernel of devices has the bits of the host's."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from softs_fast import _kernels, kernels
from softs_fast.errors import ConfigError
from softs_fast.tensors import cuda

from .expect import expect, expect_bits, expect_raises
from .on_device import Buffer, to_device
from .values import DTYPES, OPS, values

__all__ = ["check", "check_dtype"]


def check(quick: bool) -> dict[str, Any]:
    """Check all dtypes."""
    n_launches = sum(check_dtype(dtype) for dtype in DTYPES)
    return {"note": f"{n_launches} combinations of dtypes, operations, scales and alignments"}


def check_dtype(in_dtype: torch.dtype) -> int:
    """Check every combination with this dtype of the inputs, each in one launch of one process.

    Returns:
        How many combinations there are.

    Raises:
        CheckFailed: a bit differs from `softs_fast.kernels.reduce`, or only one of both refuses a combination.
    """
    n_launches = 0
    on_host = [values(rank, in_dtype, 1000) for rank in range(3)]
    on_device = [to_device(tensor) for tensor in on_host]
    buffer = Buffer(8 * 1000)
    for out_dtype, op, shift in itertools.product(DTYPES, OPS, (0, 1)):
        names = str(in_dtype).removeprefix("torch."), str(out_dtype).removeprefix("torch.")
        inputs = [tensor[shift:] for tensor in on_device]
        output = buffer.place(torch.zeros(1000, dtype=out_dtype))[shift:]
        wanted = torch.empty(1000 - shift, dtype=out_dtype)
        for scale in (1.0,) if in_dtype is torch.bool else (1.0, -0.37, float("nan")):
            what = f"{op} of {names[0]} into {names[1]} times {scale}, {shift} off its alignment"
            call: dict[str, Any] = {"in_dtype": names[0], "out_dtype": names[1], "op": op, "scale": scale}
            addresses = [tensor.data_ptr() for tensor in inputs]
            arguments = addresses, output.data_ptr(), len(wanted)
            call["stream"] = cuda.current_stream(0)
            try:
                kernels.reduce([tensor[shift:] for tensor in on_host], wanted, op, scale=scale)
            except ConfigError:
                error = expect_raises(ValueError, lambda: _kernels.cuda_reduce(*arguments, **call), what)  # noqa: B023
                expect("no " in str(error), f"{what}: {error}")
                continue
            _kernels.cuda_reduce(*arguments, **call)
            expect_bits(output, wanted, what)
            n_launches += 1
    return n_launches
