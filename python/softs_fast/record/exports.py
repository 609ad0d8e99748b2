"""Recordings in the formats of others: tars of WebDataset, and Parquet."""

from __future__ import annotations

import io
import math
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..durable import write_file
from ..errors import ConfigError
from .columns import SEQUENCE, Array
from .recording import Recording

__all__ = ["to_parquet", "to_webdataset"]


def to_webdataset(
    recording: Recording, target: str | os.PathLike[str], *, file_bytes: int = 128 << 20
) -> list[Path]:
    """Write a recording as tars of WebDataset: ``000000.tar`` and on.

    The key of a sample is its number. Each tensor is a file ``NAME.npy``, which WebDataset decodes by itself, under its name
    in lower case; bfloat16 and float8, which numpy lacks, become float32.

    Args:
        recording: The recording.
        target: Folder for the files, which is empty or does not exist.
        file_bytes: Bytes of samples per file.

    Returns:
        The files.

    Raises:
        ConfigError: `target` has files, the name of a tensor has a slash, or two are equal in lower case.
        DamagedError, OSError: The recording cannot be read, or the files cannot be written.
    """
    names = recording.config.tensor_names
    if wrong := [name for name in names if "/" in name]:
        raise ConfigError(
            f'a tensor named "{wrong[0]}" cannot be a file of a tar, because of its slash; use to_parquet'
        )
    if len({name.lower() for name in names}) < len(names):
        raise ConfigError(
            f"WebDataset reads names in lower case, in which some of {', '.join(names)} are equal; use to_parquet"
        )

    def write(file: BinaryIO, numbers: Sequence[int]) -> None:
        with tarfile.open(fileobj=file, mode="w") as tar:
            for number, sample in zip(numbers, recording.samples(numbers), strict=True):
                for name, array in _arrays(sample):
                    data = io.BytesIO()
                    np.save(data, array, allow_pickle=False)
                    entry = tarfile.TarInfo(f"{number:012}.{name}.npy")
                    entry.size = data.tell()
                    data.seek(0)
                    tar.addfile(entry, data)

    return _written(recording, Path(target), "tar", file_bytes, write)


def to_parquet(
    recording: Recording, target: str | os.PathLike[str], *, file_bytes: int = 128 << 20
) -> list[Path]:
    """Write a recording as files of Parquet: ``000000.parquet`` and on. Needs pyarrow.

    A row is a sample, with its number in the column ``sequence``. Each tensor is a column of lists, nested as its shape is;
    bfloat16 and float8 become float32.

    Args:
        recording, target, file_bytes: The same as for `to_webdataset`.

    Returns:
        The files.

    Raises:
        ConfigError: `target` has files, or pyarrow is not installed.
        DamagedError, OSError: The recording cannot be read, or the files cannot be written.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(f"to_parquet needs pyarrow: {error}; pip install 'softs-fast[record]'") from None

    def lists(array: Array) -> Any:
        found = pyarrow.array(array.reshape(-1))
        for axis in range(array.ndim - 1, 0, -1):
            if size := array.shape[axis]:
                found = pyarrow.FixedSizeListArray.from_arrays(found, size)
            else:
                # How many lists of no elements there are, no number of elements says.
                starts = np.zeros(math.prod(array.shape[:axis]) + 1, np.int64)
                found = pyarrow.LargeListArray.from_arrays(starts, found)
        return found

    def write(file: BinaryIO, numbers: Sequence[int]) -> None:
        columns = {SEQUENCE: pyarrow.array(np.asarray(numbers, np.uint64))}
        for name, value in recording.batch(numbers).items():
            if hasattr(value, "lengths"):
                offsets = np.concatenate([[0], np.cumsum(value.lengths.numpy())])
                values = lists(_array(value.values))
                columns[name] = pyarrow.LargeListArray.from_arrays(offsets, values)
            else:
                columns.update((one, lists(array)) for one, array in _arrays({name: value}))
        pyarrow.parquet.write_table(pyarrow.table(columns), file)

    return _written(recording, Path(target), "parquet", file_bytes, write)


def _written(
    recording: Recording,
    target: Path,
    suffix: str,
    file_bytes: int,
    write: Callable[..., None],
) -> list[Path]:
    """Write files of some samples each, every one of which is whole once it has its name."""
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise ConfigError(f"{target} has files already; give an empty folder")
    n, numbers = max(1, file_bytes // max(1, recording.config.nbytes())), recording.numbers
    files: list[Path] = []
    for start in range(0, len(numbers), n):
        files.append(target / f"{len(files):06}.{suffix}")
        write_file(files[-1], partial(write, numbers=[int(number) for number in numbers[start : start + n]]))
    return files


def _arrays(tensors: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
    """Yield the tensors of a sample or a batch as arrays with their names; `TopKLogits` has one for each of its parts."""
    for name, value in tensors.items():
        fields = getattr(value, "_fields", None)
        if fields is None:
            yield name, _array(value)
        else:
            yield from ((f"{name}.{field}", _array(getattr(value, field))) for field in fields)


def _array(tensor: Any) -> Array:
    """Return a tensor as an array, which has a wider dtype where numpy lacks that of the tensor."""
    try:
        array: Array = tensor.numpy()
    except TypeError:
        array = tensor.float().numpy()
    return array
