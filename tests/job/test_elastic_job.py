"""Jobs of real processes: ranks and suppliers that are killed, and ranks that join, change no number and no weight."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("google.protobuf", reason="needs the extra grpc")
import torch
from live_job import LiveJob, replayed

ELASTIC = ("--min-workers", "1", "--max-workers", "4", "--form-timeout", "0.5")


def check(job: LiveJob) -> None:
    """All ranks that live have ended with the weights of an undisturbed run with the same sizes."""
    ends = [one.ended() for one in job.ranks if not one.was_killed]
    job.recount()
    assert len({tuple(end["weights"]) for end in ends}) == 1
    torch.testing.assert_close(
        torch.tensor(ends[0]["weights"]), torch.tensor(replayed(job.sizes()).weights()), rtol=1e-4, atol=1e-5
    )


@pytest.mark.timeout(180)
def test_a_rank_and_a_supplier_are_killed_and_a_rank_joins(live_job: Callable[..., LiveJob]) -> None:
    """Two ranks, then one, then two; meanwhile one of two suppliers dies. All numbers are trained once."""
    job = live_job(60, *ELASTIC)
    first, second = job.start(), job.start()
    second.until(10)
    second.kill()
    first.until(max(second.committed) + 5)
    job.kill_supplier()
    third = job.start()
    third.until(55)
    check(job)
    assert {1, 2} <= set(job.sizes())
