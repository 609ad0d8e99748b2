"""The kernel that packs tensors into a slot, beside what torch makes of them."""

from __future__ import annotations

import pytest

from softs_fast.gpu.checks import pack


@pytest.mark.parametrize("shift", pack.SHIFTS)
@pytest.mark.parametrize("count", pack.COUNTS)
def test_every_cast_at_every_alignment(count: int, shift: int) -> None:
    pack.check_casts(count, shift)
