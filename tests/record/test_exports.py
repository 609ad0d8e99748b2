"""Recordings in the formats of others, read by plain readers."""

from __future__ import annotations

import io
import sys
import tarfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recordings import KINDS, kinds, record

from softs_fast import BatchConfig, ConfigError, TensorSpec
from softs_fast.record import Recording, to_parquet, to_webdataset

N = 30


@pytest.fixture
def recording(tmp_path: Path) -> Any:
    """A recording of tensors of all kinds, which takes several files."""
    record(tmp_path / "recording", range(N), make=kinds, config=KINDS, shard_bytes=3000)
    with Recording(tmp_path / "recording") as found:
        yield found


def expected() -> list[dict[str, list[Any]]]:
    """The samples as lists of Python, by the names of a file."""
    batch, samples = kinds(range(N)), []
    for i in range(N):
        found: dict[str, Any] = {}
        for name, value in batch.items():
            if name == "top":
                found |= {f"top.{field}": part[i].tolist() for field, part in value._asdict().items()}
            else:
                row = value.unbind()[i]
                found[name] = (
                    row.float() if row.dtype in (torch.bfloat16, torch.float8_e4m3fn) else row
                ).tolist()
        samples.append(found)
    return samples


def test_tars_of_webdataset(tmp_path: Path, recording: Recording) -> None:
    files = to_webdataset(recording, tmp_path / "tars", file_bytes=8 * recording.config.nbytes())
    assert [file.name for file in files] == [f"{i:06}.tar" for i in range(4)]
    samples: dict[int, dict[str, Any]] = defaultdict(dict)
    for file in files:
        with tarfile.open(file) as tar:
            for entry in tar:
                key, _, name = entry.name.partition(".")
                content = tar.extractfile(entry)
                assert content is not None
                array = np.load(io.BytesIO(content.read()))
                samples[int(key)][name.removesuffix(".npy")] = array.tolist()
    assert list(samples) == list(range(N))
    assert list(samples.values()) == expected()
    with pytest.raises(ConfigError, match="tars has files already; give an empty folder"):
        to_webdataset(recording, tmp_path / "tars")


def test_files_of_parquet(tmp_path: Path, recording: Recording) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    files = to_parquet(recording, tmp_path / "table", file_bytes=8 * recording.config.nbytes())
    assert [file.name for file in files] == [f"{i:06}.parquet" for i in range(4)]
    rows = [row for file in files for row in parquet.read_table(file).to_pylist()]
    assert [row.pop("sequence") for row in rows] == list(range(N))
    assert rows == expected()


def test_tensors_without_elements_keep_their_shapes_in_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    shapes = {"a": (0,), "b": (2, 0), "c": (0, 3), "d": (2, 0, 3), "e": (0, 0), "y": (1,)}
    config = BatchConfig([TensorSpec(name, shape, "float32") for name, shape in shapes.items()])
    sample = {name: torch.ones(shape) for name, shape in shapes.items()}

    def make(numbers: range) -> dict[str, torch.Tensor]:
        return {name: row.expand(len(numbers), *row.shape) for name, row in sample.items()}

    record(tmp_path / "recording", range(9), make=make, config=config)
    with Recording(tmp_path / "recording") as found:
        files = to_parquet(found, tmp_path / "table", file_bytes=5 * config.nbytes())
        batch = found.batch(range(9))
    assert {name: tuple(rows.shape[1:]) for name, rows in batch.items()} == shapes
    rows = [row for file in files for row in parquet.read_table(file).to_pylist()]
    expected = {name: row.tolist() for name, row in sample.items()}
    assert rows == [{"sequence": number, **expected} for number in range(9)]


def test_what_a_format_cannot_hold(
    tmp_path: Path, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"to_parquet needs pyarrow: .* pip install 'softs-fast\[record\]'"):
        to_parquet(recording, tmp_path / "table")
    config = BatchConfig([TensorSpec("a/b", (), "int64")])
    record(tmp_path / "slash", range(3), make=lambda n: {"a/b": torch.tensor(list(n))}, config=config)
    with Recording(tmp_path / "slash") as found, pytest.raises(ConfigError, match='tensor named "a/b"'):
        to_webdataset(found, tmp_path / "tars")
    config = BatchConfig([TensorSpec("X", (), "int64"), TensorSpec("x", (), "int64")])
    record(
        tmp_path / "cases",
        range(3),
        make=lambda n: {name: torch.tensor(list(n)) for name in "Xx"},
        config=config,
    )
    with (
        Recording(tmp_path / "cases") as found,
        pytest.raises(ConfigError, match=r"in lower case, .* X, x are equal"),
    ):
        to_webdataset(found, tmp_path / "tars")
