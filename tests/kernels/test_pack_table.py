"""Tables of tensors that are to be packed into a slot: what is refused before CUDA is called, with and without a GPU."""

from __future__ import annotations

import pytest

from softs_fast import _kernels

# Addresses that are never followed: a table is checked by its numbers.
HERE = 1 << 20
LARGEST = 2**64 - 1


def pack(*rows: tuple[int, int, str, int, str], slot_bytes: int = 64) -> None:
    _kernels.cuda_pack(rows, slot=HERE, slot_bytes=slot_bytes, stream=0)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(HERE, 17, "float32", 0, "float32")], "item 0 leaves the slot: need 17 x 4 bytes at 0, have 64"),
        ([(HERE, 1, "float32", 64, "float32")], "item 0 leaves the slot: need 1 x 4 bytes at 64, have 64"),
        ([(HERE, 1, "int8", LARGEST, "int8")], "item 0 leaves the slot"),
        ([(HERE, LARGEST, "int64", 0, "int64")], "item 0 leaves the slot"),
        ([(HERE, 2**62, "float32", 8, "float32")], "item 0 leaves the slot"),  # 2^64 bytes, which is 0
        ([(HERE, 1, "float32", 2, "float32")], "item 0 is not aligned"),
        ([(HERE + 1, 1, "float16", 0, "float32")], "item 0 is not aligned"),
        ([(HERE, 4, "int32", 0, "float32")], "item 0 has a cast that there is not"),
        ([(HERE, 4, "float32", 0, "int8")], "item 0 has a cast that there is not"),
        ([(HERE, 4, "float8", 0, "int8")], 'unknown dtype "float8"'),
        (
            [
                (HERE, 4, "float32", 16, "float32"),
                (HERE, 1, "int8", 0, "int8"),
                (HERE, 8, "int16", 14, "int16"),
            ],
            "item 0 overlaps item 2",
        ),
    ],
)
def test_tables_that_do_not_fit_are_refused(rows: list[tuple[int, int, str, int, str]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack(*rows)


def test_without_cuda_a_good_table_says_what_is_missing() -> None:
    if _kernels.cuda_build() is not None and _kernels.cuda_devices() > 0:
        pytest.skip("this machine has what it takes")
    message = "no CUDA side" if _kernels.cuda_build() is None else "cudaError"
    with pytest.raises(RuntimeError, match=message):
        pack(
            (HERE, 8, "float32", 0, "bfloat16"),
            (HERE, 0, "int8", 64, "int8"),
            (HERE, 12, "float32", 16, "float32"),
        )
