"""Samples of which each says its number, recordings of them, and damage."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from softs_fast import BatchConfig, RecordOptions, TensorSpec
from softs_fast.record import Recorder, Recording
from softs_fast.record.columns import columns_of, rows_of
from softs_fast.record.folder import Folder
from softs_fast.record.manifest import MANIFEST, StreamFacts, read_manifest
from softs_fast.record.shard_writer import ShardWriter

PLAIN = BatchConfig([TensorSpec("y", (), "int64"), TensorSpec("x", (3,), "float32")])
#: Tensors of all kinds that a recording has, in an order that is not that of a file.
KINDS = BatchConfig(
    [
        TensorSpec("flag", (), "bool"),
        TensorSpec("half", (3,), "bfloat16"),
        TensorSpec("tiny", (2,), "float8_e4m3fn"),
        TensorSpec("words", (5,), "int32", ragged=True),
        TensorSpec("cast", (4,), "float32", codec="cast:float16"),
        TensorSpec("scaled", (16,), "float32", codec="int8:8"),
        TensorSpec("top", (2, 9), "float32", codec="topk:3"),
        TensorSpec("none", (0,), "int64"),
        TensorSpec("states", (4, 2), "float16", ragged=True),
        TensorSpec("y", (), "int64"),
    ]
)


def plain(numbers: Any) -> dict[str, torch.Tensor]:
    """A batch of `PLAIN`."""
    y = torch.tensor(list(numbers))
    return {"y": y, "x": y.float()[:, None].expand(-1, 3)}


def sample(number: int) -> dict[str, torch.Tensor]:
    """A sample of `KINDS`."""
    rng = torch.Generator().manual_seed(number)
    return {
        "flag": torch.tensor(number % 3 == 0),
        "half": torch.randn(3, generator=rng).bfloat16(),
        "tiny": torch.randn(2, generator=rng).to(torch.float8_e4m3fn),
        "words": torch.arange(number % 6, dtype=torch.int32),
        "cast": torch.randn(4, generator=rng),
        "scaled": torch.randn(16, generator=rng),
        "top": torch.randn(2, 9, generator=rng),
        "none": torch.empty(0, dtype=torch.int64),
        "states": torch.full((number % 5, 2), number, dtype=torch.float16),
        "y": torch.tensor(number),
    }


def kinds(numbers: Any) -> dict[str, Any]:
    """A batch of `KINDS` as a loader hands it out."""
    return KINDS.decode_batch([KINDS.encode(**sample(number)) for number in numbers])


def recorder(folder: Path, *, shard_bytes: int = 1000, **options: Any) -> Recorder:
    """A recorder of `PLAIN`, by default of small shards of 35 samples."""
    how = {key: options.pop(key) for key in ("policy", "buffer_bytes") if key in options}
    arguments = {"product": "p", "config": PLAIN, "ordered": True, **options}
    return Recorder(RecordOptions(folder, shard_bytes=shard_bytes, **how), **arguments)


def record(folder: Path, numbers: range, *, batch_size: int = 8, make: Any = plain, **options: Any) -> None:
    """Record the numbers of a rank."""
    writer = recorder(folder, **options)
    for i in range(0, len(numbers), batch_size):
        writer.record("p", numbers[i] // numbers.step, make(numbers[i : i + batch_size]))
    writer.close()


def shard_writer(folder: Path, *, shard_bytes: int = 28 * 12) -> ShardWriter:
    """A writer of shards of 12 samples of `PLAIN`, which continues what the folder has."""
    if (folder / MANIFEST).exists():
        return ShardWriter(folder, read_manifest(Folder(folder)), shard_bytes)
    texts = {"recording": "r", "product": "p", "host": "h", "version": "1"}
    numbers = {"rank": 0, "world_size": 1, "shard_bytes": 1, "began_s": 0.0}
    return ShardWriter(folder, StreamFacts.of(PLAIN, ordered=True, **texts, **numbers), shard_bytes)


def append(writer: ShardWriter, numbers: range) -> None:
    """Append a block of `PLAIN`."""
    writer.append(rows_of(PLAIN, columns_of(PLAIN), plain(numbers), np.asarray(numbers, np.uint64)))


def edit(folder: Path, change: Callable[[Any], object]) -> None:
    """Change the manifest."""
    facts = json.loads((folder / MANIFEST).read_text())
    change(facts)
    (folder / MANIFEST).write_text(json.dumps(facts))


def flip(path: Path, at: int) -> None:
    """Change a byte."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    """Take the last byte away."""
    os.truncate(path, path.stat().st_size - 1)


def equal(one: Any, other: Any) -> bool:
    """Whether two batches or samples are the same to the bit."""
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[name], other[name]) for name in one)
    if isinstance(one, tuple):
        return type(one) is type(other) and all(map(equal, one, other))
    same = one.dtype == other.dtype and one.shape == other.shape
    return same and (not one.numel() or bool(torch.equal(_bits(one), _bits(other))))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def check(folder: Path, numbers: range | list[int]) -> None:
    """Check that a recording of `PLAIN` has these samples, and that all are what they were."""
    with Recording(folder, verify=True) as recording:
        assert list(recording.numbers) == list(numbers)
        if len(numbers):
            assert equal(recording.batch(list(numbers)), plain(numbers))
