"""Memory of frames is used again, and never while something looks at it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from softs_fast.paramserver.wire.tensors import Memory, from_bytes

LARGE = 3 << 20


def test_what_a_view_or_a_tensor_looks_at_is_not_handed_out() -> None:
    memory = Memory(4)
    first = memory.take(LARGE)
    part = first[100:200]
    del first
    second = memory.take(LARGE)
    part[:] = bytes([7]) * 100
    second[:] = bytes(LARGE)
    assert bytes(part) == bytes([7]) * 100
    tensor = from_bytes(second[: 1 << 20], torch.float32)
    del second
    third = memory.take(LARGE)
    third[:] = bytes([9]) * LARGE
    assert not tensor.any()


def test_what_nothing_looks_at_is_handed_out_again() -> None:
    memory = Memory(1)
    memory.take(LARGE)[:4] = b"mark"
    again = memory.take(LARGE - 1000)
    assert bytes(again[:4]) == b"mark"
    assert len(again) == LARGE - 1000


@pytest.mark.parametrize("n", [LARGE + 1, LARGE // 2 - 1, 0, 1])
def test_other_lengths_get_other_memory(n: int) -> None:
    memory = Memory(1)
    memory.take(LARGE)[:4] = b"mark"
    taken = memory.take(n)
    assert len(taken) == n
    assert b"mark" not in bytes(taken[:4])


def test_no_more_is_kept_than_allowed() -> None:
    memory = Memory(2)
    views = [memory.take(LARGE) for _ in range(4)]
    for i in range(4):
        views[i][:4] = f"no {i}".encode()
    views.clear()
    held = [memory.take(LARGE) for _ in range(3)]
    assert sorted(bytes(one[:4]) for one in held) == [bytes(4), b"no 2", b"no 3"]


def test_threads_never_share() -> None:
    memory = Memory(4)

    def fill(number: int) -> bool:
        taken = memory.take(LARGE)
        taken[:] = bytes([number]) * LARGE
        return bytes(taken) == bytes([number]) * LARGE

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(fill, range(40)))
