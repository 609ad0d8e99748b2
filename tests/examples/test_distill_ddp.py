"""The DDP example on two ranks: a second run is the same, and no sample is given to both."""

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


@pytest.fixture
def start(launch: Callable[..., Demo]) -> Callable[..., Demo]:
    """Starts the example on two ranks."""

    def start(*arguments: str) -> Demo:
        torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
        return launch(*torchrun, EXAMPLE, *arguments)

    return start


@pytest.mark.full
def test_two_runs_are_the_same_and_ranks_share_no_sample(start: Callable[..., Demo]) -> None:
    # Side by side, to save time; the number of workers makes no difference.
    first, second = start("--steps", "40", "--workers", "1"), start("--steps", "40", "--workers", "2")
    texts = []
    for demo in (first, second):
        texts.append(re.findall(r"^(?:generation|digest).*$", demo.succeeds(), re.MULTILINE))
    assert texts[0] == texts[1]

    *generations, digest = texts[0]
    assert re.fullmatch(r"digest of losses and weights: [0-9a-f]{16}", digest)
    found = [
        re.fullmatch(
            r"generation (\d), teacher '(\w+)': loss ([\d.]+) -> ([\d.]+), "
            r"([\d,]+) samples on 2 ranks, ([\d,]+) of them distinct",
            line,
        )
        for line in generations
    ]
    assert [(match[1], match[2]) for match in found if match] == [("1", "narrow"), ("2", "wide")]
    for match in found:
        assert match is not None
        assert float(match[4]) < 0.7 * float(match[3])
        assert match[5] == match[6] == f"{2 * 40 * 32:,}"


def test_samples_depend_on_seed_rank_and_place_only() -> None:
    def samples(seed: int, rank: int, *places: int) -> tuple[bytes, bytes]:
        made = Teachers(seed)("wide", {"width": 16}, len(places), places, rank)
        return made["x"].tobytes(), made["y"].tobytes()

    both = samples(0, 0, 3, 4)
    alone = samples(0, 0, 3), samples(0, 0, 4)
    assert both == tuple(b"".join(parts) for parts in zip(*alone, strict=True))
    assert len({samples(0, 0, 3), samples(0, 0, 4), samples(0, 1, 3), samples(1, 0, 3)}) == 4
