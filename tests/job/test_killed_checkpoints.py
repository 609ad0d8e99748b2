"""Jobs of real processes that are killed, all of them: the next run goes on from the newest whole checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.protobuf", reason="needs the extra grpc")
from live_job import EVERY, LiveJob, has, replayed, train
from waiting import eventually

from softs_fast.job import checkpoint_folder
from softs_fast.job.retention import steps_in


def steps(folder: Path) -> list[int]:
    """Return the steps of the checkpoints that are sealed, newest first."""
    return steps_in(one.name for one in folder.glob("*")) if folder.exists() else []


def never_seals(say: Callable[[Any], None], rank: int, size: int, options: dict[str, Any]) -> None:
    """Train; the writer of the second checkpoint writes its files, and gets no further."""
    publish = checkpoint_folder.publish_folder

    def stop(partial: Path, path: Path) -> None:
        if path.name.endswith(f"{2 * EVERY:08}"):
            threading.Event().wait()
        publish(partial, path)

    checkpoint_folder.publish_folder = stop  # type: ignore[assignment]
    train(say, rank, size, options)


def half_written(folder: Path) -> Path:
    """Wait until a checkpoint has all its files but not its name; its folder."""
    found = eventually(lambda: [*folder.glob(".partial-*/manifest")], "a checkpoint that is being written")
    return found[0].parent


@pytest.mark.timeout(240)
def test_ranks_that_are_killed_while_they_write_and_train(
    live_job: Callable[..., LiveJob], tmp_path: Path
) -> None:
    """A writer dies, and the other rank takes over; then all ranks die, twice. One process ends the job, without a coordinator."""
    job = live_job(5 * EVERY + 3, "--min-workers", "1", "--max-workers", "2", "--form-timeout", "0.5")
    folder = job.checkpoints = tmp_path / "ckpt"
    job.allow(0)
    first = [job.start(never_seals), job.start(never_seals)]
    job.coordinator.status(has(2))
    job.allow(EVERY)
    # One that is due while another one is being written is left out.
    eventually(lambda: steps(folder) == [EVERY], "the first one")
    job.allow(2 * EVERY)
    for one in first:
        one.until(2 * EVERY)
    partial = half_written(folder)
    places = {one.committed[2 * EVERY]["place"]: one for one in first}
    places[0, 2].kill()
    assert steps(folder) == [EVERY]
    job.allow(3 * EVERY + 1)
    places[1, 2].until(3 * EVERY + 1)
    eventually(lambda: steps(folder) == [3 * EVERY, EVERY] and not partial.exists(), "the next one")
    # In the midst of a step, and the coordinator lives on.
    job.kill_all(3 * EVERY)
    job.allow(4 * EVERY)
    for _ in range(2):
        job.start()
    eventually(lambda: steps(folder) == [4 * EVERY, 3 * EVERY], "a checkpoint of the second run")
    job.kill_all(4 * EVERY)
    job.allow(job.n_steps)
    end = job.start(is_alone=True).ended()
    # It deletes the one before in its thread, and may have said its end by then.
    eventually(lambda: steps(folder) == [5 * EVERY, 4 * EVERY], "the last one")
    sizes = job.recount()
    assert end["weights"] == replayed(sizes).weights()
    assert (sizes[2 * EVERY - 1], sizes[2 * EVERY], sizes[-1]) == (2, 1, 1)


@pytest.mark.timeout(240)
def test_a_rank_that_has_loaded_what_the_others_do_not_see(
    live_job: Callable[..., LiveJob], tmp_path: Path
) -> None:
    job = live_job(EVERY, "--min-workers", "1", "--max-workers", "2", "--form-timeout", "0.5")
    job.checkpoints = tmp_path / "ckpt"
    job.start(is_alone=True).ended()
    job.checkpoints = tmp_path / "others"
    job.allow(0)
    job.start()
    job.coordinator.status(has(1))
    job.checkpoints = tmp_path / "ckpt"
    refused = job.start()

    def error() -> str:
        refused.read()
        return refused.error

    text = f"this rank has loaded step {EVERY}, and the job goes on at 0: all ranks must see one folder"
    assert text in eventually(error, "an error")
