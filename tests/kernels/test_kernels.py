"""`softs_fast.kernels`: what it takes, what it refuses, and what it reports of the build."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from softs_fast import ConfigError
from softs_fast.kernels import build_info, copy, reduce


def test_build_info_names_what_was_compiled_and_what_runs() -> None:
    info = build_info()
    assert info.available[-1] == "scalar"
    assert set(info.available) <= set(info.compiled)
    assert info.chosen == info.available[0]
    assert any(name in info.compiler for name in ("gcc", "clang"))
    assert (info.cuda is None) == (info.cuda_architectures == ())


@pytest.mark.skipif(platform.machine() != "x86_64", reason="instruction sets of x86_64")
def test_instruction_sets_are_those_that_linux_lists() -> None:
    (flags, *_) = re.findall(r"^flags\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    avx2 = {"avx2", "f16c"}
    needs = {
        "avx512": avx2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
        "avx2": avx2,
        "scalar": set[str](),
    }
    assert build_info().available == tuple(
        name for name, needed in needs.items() if needed <= {*flags.split()}
    )


def test_tensors_and_arrays_may_be_mixed() -> None:
    out = torch.zeros(2, 3)
    reduce([np.ones((2, 3), np.float32), torch.full((2, 3), 2.0)], out, "mean")
    assert torch.equal(out, torch.full((2, 3), 1.5))


def test_every_output_gets_the_result() -> None:
    ones = np.ones(100, np.int16)
    outs = [np.zeros(100, np.int16) for _ in range(3)]
    reduce([ones, ones, outs[0]], outs)
    for out in outs:
        assert (out == 2).all()


def test_result_may_replace_an_input() -> None:
    first, second = torch.ones(1000), torch.ones(1000)
    reduce([first, second], second, scale=0.5)
    assert torch.equal(second, torch.ones(1000))


def test_integers_wrap_around() -> None:
    out = np.zeros(1, np.int8)
    reduce([np.array([100], np.int8), np.array([100], np.int8)], out)
    assert out[0] == -56


@pytest.mark.parametrize("n_bytes", [1600, (1 << 20) + 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_a_copy_has_the_bits_of_its_source(n_bytes: int, dtype: torch.dtype) -> None:
    # NaNs of all kinds among them.
    source = torch.from_numpy(np.random.default_rng(1).integers(0, 256, n_bytes, np.uint8)).view(dtype)
    for given, out in ((source, torch.zeros_like(source)), (source.clone().unflatten(0, (-1, 2)).t(), None)):
        out = torch.zeros(given.shape, dtype=dtype) if out is None else out
        before = out._version
        copy(given, out)
        assert out._version > before, "autograd sees that it was written"
        assert torch.equal(out.view(torch.uint8), given.contiguous().view(torch.uint8))
    array = np.zeros(n_bytes, np.uint8)
    copy(source.view(torch.uint8).numpy(), array)
    assert array.tobytes() == source.view(torch.uint8).numpy().tobytes()


def test_a_copy_of_what_is_no_plain_memory_has_its_values() -> None:
    source = torch.randn(1 << 18, dtype=torch.complex64)
    for given in (source.conj(), source.conj().imag, torch.nn.Parameter(source.real)):
        out = torch.empty(given.shape, dtype=given.dtype)
        copy(given.detach(), out)
        assert torch.equal(out, given)


def test_a_large_copy_is_refused_as_a_small_one_is() -> None:
    for n in (8, 1 << 20):
        locked = np.zeros(n)
        locked.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            copy(np.ones(n), locked)
        assert not locked.any()
        with pytest.raises(RuntimeError, match="must match"):
            copy(torch.ones(2, n), torch.zeros(n, 2))


def test_a_copy_of_objects_counts_them() -> None:
    one = object()
    source = np.full(1 << 17, one, object)
    before = sys.getrefcount(one)
    out = np.empty_like(source)
    copy(source, out)
    assert sys.getrefcount(one) == before + len(source)


def test_works_without_torch() -> None:
    program = """
import sys; sys.modules["torch"] = None
import numpy as np
from softs_fast.kernels import reduce
out = np.zeros(4)
reduce([np.ones(4), np.ones(4)], out)
assert out.tolist() == [2.0] * 4
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


ONES = torch.ones(8)


@pytest.mark.parametrize(
    ("inputs", "out", "options", "message"),
    [
        ([], ONES.clone(), {}, "0 inputs, 1 outputs; need at least one of each"),
        ([ONES], [], {}, "1 inputs, 0 outputs"),
        ([ONES, torch.ones(7)], ONES.clone(), {}, r"input 1 has shape \(7,\); need \(8,\) as input 0"),
        ([ONES, ONES.double()], ONES.clone(), {}, "input 1 is float64; need float32 as input 0"),
        ([ONES], torch.ones(2, 4), {}, r"output 0 has shape \(2, 4\)"),
        ([ONES], [ONES.clone(), ONES.double()], {}, "output 1 is float64; need float32 as output 0"),
        ([ONES], ONES.int(), {}, "no sum of float32 to int32"),
        ([ONES.bool()], ONES.bool(), {"op": "mean"}, "no mean of bool to bool"),
        ([ONES.to(torch.complex64)], ONES.clone(), {}, 'unknown dtype "complex64"'),
        ([ONES], ONES.clone(), {"op": "product"}, 'unknown operation "product"'),
        ([ONES], ONES.clone(), {"instruction_set": "mmx"}, 'instruction set "mmx" is not available here'),
        ([ONES], torch.ones(8, 2)[:, 0], {}, "output 0 is not contiguous"),
        ([ONES], torch.ones(8, device="meta"), {}, "output 0 is on meta; need host memory"),
        ([np.ones(8, ">f4")], ONES.clone(), {}, "input 0 has its sign or its bytes turned around"),
        ([ONES], list(ONES), {}, r"output 0 has shape \(\)"),
        ([ONES.to_sparse()], ONES.clone(), {}, "input 0 is torch.sparse_coo; need a dense tensor"),
        ([[1.0] * 8], ONES.clone(), {}, "input 0 is of type list; need a tensor or an array"),
    ],
)
def test_what_does_not_fit_is_refused(
    inputs: list[object], out: object, options: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        reduce(inputs, out, **options)  # type: ignore[arg-type]


def test_read_only_outputs_are_refused() -> None:
    out = np.ones(8, np.float32)
    out.flags.writeable = False
    with pytest.raises(ConfigError, match="output 0 is read-only"):
        reduce([ONES], out)
    assert (out == 1).all()


def test_memory_that_overlaps_is_refused() -> None:
    memory = torch.ones(20)
    with pytest.raises(ConfigError, match="output 0 overlaps input 0"):
        reduce([memory[:8]], memory[4:12])
    with pytest.raises(ConfigError, match="output 1 overlaps output 0"):
        reduce([ONES], [memory[:8], memory[:8]])
    with pytest.raises(ConfigError, match="output 0 overlaps input 0"):  # of wider items
        reduce([memory[:8]], memory.view(torch.float64)[:8])
    reduce([memory[:8]], memory[8:16])
