"""Encoding into a slot, and decoding slots into a batch: `pytest benches/test_codecs.py --benchmark-only`.

Both run on one core. `extra_info` holds bytes of float32 per second, the same bytes for every codec.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from softs_fast import BatchConfig, TensorSpec

#: Two rows of logits, 2 x 32000 float32.
ROWS, VOCABULARY = 2, 32_000
N_SAMPLES = 16
CODECS = ["exact", "cast:bfloat16", "cast:float16", "cast:float8_e4m3fn", "cast:float8_e5m2", "int8:128", "topk:64"]  # fmt: skip

by_codec = pytest.mark.parametrize("codec", CODECS)


@by_codec
def test_encode(benchmark: Any, codec: str) -> None:
    config, values = _logits(codec)
    slot = bytearray(config.nbytes())
    benchmark.group = "encode into a slot, 256 KB of float32"
    benchmark.pedantic(config.encode_into, args=({"x": values}, slot), rounds=200, warmup_rounds=20)
    _describe(benchmark, config, 1)


@by_codec
def test_decode(benchmark: Any, codec: str) -> None:
    config, values = _logits(codec)
    slots = [config.encode(x=values) for _ in range(N_SAMPLES)]
    benchmark.group = f"decode {N_SAMPLES} slots into a new batch, 256 KB of float32 each"
    benchmark.pedantic(config.decode_batch, args=(slots,), rounds=200, warmup_rounds=20)
    _describe(benchmark, config, N_SAMPLES)


def _logits(codec: str) -> tuple[BatchConfig, torch.Tensor]:
    values = torch.randn(ROWS, VOCABULARY, generator=torch.Generator().manual_seed(0)) * 4
    return BatchConfig([TensorSpec("x", (ROWS, VOCABULARY), "float32", codec=codec)]), values


def _describe(benchmark: Any, config: BatchConfig, n_samples: int) -> None:
    # There are no statistics under --benchmark-disable.
    if benchmark.stats is not None:
        n_bytes = n_samples * ROWS * VOCABULARY * 4
        benchmark.extra_info.update(
            bytes_per_s=n_bytes / benchmark.stats.stats.median, slot_bytes=config.nbytes()
        )
