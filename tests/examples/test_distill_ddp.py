"""The DDP example on two ranks: both teachers are learned, and no sample is given to both ranks."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from demo import Demo

from distill_ddp import Teachers

EXAMPLE = Path(__file__).parents[2] / "examples" / "distill_ddp.py"
pytestmark = pytest.mark.timeout(180)


@pytest.mark.full
def test_both_teachers_are_learned_and_ranks_share_no_sample(launch: Callable[..., Demo]) -> None:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    text = launch(*torchrun, EXAMPLE, "--steps", "40", "--workers", "1").succeeds()
    assert re.search(r"^digest of losses and weights: [0-9a-f]{16}$", text, re.MULTILINE)
    found = re.findall(
        r"^generation (\d), teacher '(\w+)': loss ([\d.]+) -> ([\d.]+), "
        r"([\d,]+) samples on 2 ranks, ([\d,]+) of them distinct$",
        text,
        re.MULTILINE,
    )
    assert [(number, teacher) for number, teacher, *_ in found] == [("1", "narrow"), ("2", "wide")]
    for *_, first, last, n_samples, n_distinct in found:
        assert float(last) < 0.7 * float(first)
        assert n_samples == n_distinct == f"{2 * 40 * 32:,}"


def test_samples_depend_on_seed_rank_and_place_only() -> None:
    def samples(seed: int, rank: int, *places: int) -> tuple[bytes, bytes]:
        made = Teachers(seed)("wide", {"width": 16}, len(places), places, rank)
        return made["x"].tobytes(), made["y"].tobytes()

    both = samples(0, 0, 3, 4)
    alone = samples(0, 0, 3), samples(0, 0, 4)
    assert both == tuple(b"".join(parts) for parts in zip(*alone, strict=True))
    assert len({samples(0, 0, 3), samples(0, 0, 4), samples(0, 1, 3), samples(1, 0, 3)}) == 4
