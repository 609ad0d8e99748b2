"""What `softs-fast status` shows of a job of real processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("google.protobuf", reason="needs the extra grpc")
from live_job import EVERY, LiveJob

from softs_fast.cli.coordinator import render


@pytest.mark.timeout(240)
def test_waits_rates_and_the_last_checkpoint(live_job: Callable[..., LiveJob], tmp_path: Path) -> None:
    job = live_job(10**6, "--world-size", "1", n_suppliers=0)
    job.checkpoints = tmp_path / "ckpt"
    job.start()
    waits = job.coordinator.status(lambda status: "wait for samples" in status.reason)
    assert waits.reason == "in step 1; all members wait for samples"
    # It goes on to report, so its rate is known.
    assert job.coordinator.status(lambda status: status.starvation).starvation > 0.5
    job.start_supplier()
    trains = job.coordinator.status(lambda status: status.samples_per_s and status.saved)
    assert trains.saved.step % EVERY == 0
    assert f"last checkpoint: step {trains.saved.step}, written " in render(trains)
    assert trains.reason.startswith("in step ")
