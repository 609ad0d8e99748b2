"""Arguments of datasets and loaders: ranges, and those of both versions of softs."""

from typing import Any

import numpy as np
import pytest

import softs_fast
from softs_fast import ConfigError, SoftDataLoader, SoftIterableDataset
from softs_fast.loader.arguments import whole_number
from softs_fast.loader.ranks import checked_ranks

CONFIG = softs_fast.make_xy_config((2,), "float32", (), "int64")
FIRST = ("a", "ipc:///unused", CONFIG, softs_fast.ShmMedium)


def test_bad_arguments() -> None:
    for arguments, text in [
        ({"num_slots": 0}, "num_slots must be a whole number and at least 1, got 0"),
        ({"num_slots": 8.0}, "num_slots must be a whole number and at least 1, got 8.0"),
        ({"retry_delay": -1.0}, "retry_delay"),
        ({"request_timeout": -0.5}, "request_timeout"),
        ({"request_timeout": float("nan")}, "request_timeout"),
        ({"request_timeout": "60"}, "request_timeout must be a number and at least 0, got '60'"),
        ({"prefetch": 0}, "prefetch must be a whole number and at least 1, got 0"),
    ]:
        with pytest.raises(ConfigError, match=text):
            SoftIterableDataset(*FIRST, **arguments)
    with pytest.raises(ConfigError, match="model_id must be a string, got int"):
        SoftIterableDataset(3, "ipc:///unused", CONFIG, softs_fast.ShmMedium)  # type: ignore[arg-type]


def test_ranks_are_whole_numbers_of_any_type() -> None:
    assert checked_ranks(np.int64(1), np.uint8(2)) == (1, 2)  # type: ignore[arg-type]
    for ranks in ((1, None), (2, 2), (-1, 2), (0.0, 2), (True, 2)):
        with pytest.raises(ConfigError, match="must be whole numbers with 0 <= rank < world_size"):
            checked_ranks(*ranks)  # type: ignore[arg-type]


@pytest.mark.parametrize("cls", [SoftIterableDataset, SoftDataLoader])
@pytest.mark.parametrize(
    ("positional", "named", "expected"),
    [
        # num_slots, retry_delay, request_timeout, max_retries
        ((), {}, (8, 0.01, 60.0, None)),
        ((4, 0.5), {}, (4, 0.5, 60.0, None)),
        ((4, 0.5, 7.0), {}, (4, 0.5, 7.0, None)),
        ((4, 0, 7.0), {}, (4, 0, 7.0, None)),
        ((4,), {"retry_delay": 2}, (4, 2, 60.0, None)),
        # softs 0.1.0
        ((4, 10), {}, (4, 0.01, None, 10)),
        ((4, 1, 0.5), {}, (4, 0.5, None, 1)),
        ((4, 10), {"retry_delay": 0.5}, (4, 0.5, None, 10)),
        ((4, 10), {"request_timeout": 5.0}, (4, 0.01, 5.0, 10)),
        ((), {"max_retries": 3}, (8, 0.01, None, 3)),
        ((), {"max_retries": 3, "request_timeout": 5.0}, (8, 0.01, 5.0, 3)),
        ((4, 0.5, 7.0), {"max_retries": 3}, (4, 0.5, 7.0, 3)),
    ],
)
def test_arguments_of_both_versions(
    cls: Any, positional: tuple[Any, ...], named: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    made = cls(*FIRST, *positional, **named)
    data = made if cls is SoftIterableDataset else made.soft_dataset
    assert (data.num_slots, data.retry_delay, data.request_timeout, data.max_retries) == expected


def test_arguments_given_twice() -> None:
    with pytest.raises(TypeError, match="given both by position and by name: retry_delay"):
        SoftIterableDataset(*FIRST, 8, 10, 0.1, retry_delay=0.1)  # type: ignore[misc]
    with pytest.raises(TypeError, match="positional arguments"):
        SoftIterableDataset(*FIRST, 8, 10, 0.1, 60.0)


def test_whole_numbers_of_numpy_are_taken() -> None:
    made = whole_number("n", np.int64(2), 1)
    assert (made, type(made)) == (2, int)
    for value in (2.0, "2", True, np.float32(2), None, 0):
        with pytest.raises(ConfigError, match="n must be a whole number and at least 1, got"):
            whole_number("n", value, 1)
