"""What ranks know of their calls when a group is rebuilt: a call that some have completed is not repeated by the others."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lost_ranks import COMPLETED, complete_late

from softs_fast.collectives import CudaStrategy, Schedule
from softs_fast.collectives.cuda.completion import Completion
from softs_fast.errors import ConfigError, PeerLost
from softs_fast.gpu.checks.on_device import to_device
from softs_fast.tensors import cuda


def test_a_call_that_failed_comes_after_those_that_returned() -> None:
    calls = Completion()
    for _ in range(3):
        calls.submit()
    assert (calls.completed, calls.failed_after) == (0, 3)
    calls.complete()
    calls.submit()
    calls.fail(in_doubt=False)
    assert (calls.completed, calls.failed_after) == (3, 4)


def test_a_device_that_failed_leaves_what_is_not_complete_in_doubt() -> None:
    calls = Completion()
    calls.submit()
    calls.complete()
    calls.submit()
    calls.submit()
    calls.fail(in_doubt=True)
    assert (calls.completed, calls.failed_after) == (1, 1)


def test_only_the_first_failure_counts() -> None:
    calls = Completion()
    calls.submit()
    calls.fail(in_doubt=False)
    calls.fail(in_doubt=True)
    assert calls.failed_after == 1


def completes_what_failed(say: Callable[[Any], None], rank: int, size: int, folder: str, waits: bool) -> str:
    """The others give up on rank 2, which then completes that call: all have staged their tensors. It knows if it waits."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    device = rank % max(1, cuda.n_devices())
    strategy = CudaStrategy(
        device=device, timeout_s=4.0, staging_bytes=1 << 20, schedule=Schedule(1 << 15, 1 << 20)
    )
    strategy.init(rank, size, folder)
    say(os.getpid())
    tensor = to_device(torch.ones(10), device)
    if rank == 2:
        signal.sigwait([signal.SIGUSR1])
        strategy.all_reduce(tensor)
        if waits:
            strategy.synchronize()
    with pytest.raises(PeerLost):
        strategy.all_reduce(tensor)
    say("failed")
    told = "rebuilt"
    try:
        strategy.rebuild()
    except ConfigError as error:
        told = str(error)
    # The new group works, and has nothing to tell the next time.
    strategy.all_reduce(tensor)
    strategy.synchronize()
    strategy.rebuild()
    strategy.barrier()
    strategy.close()
    return told


@pytest.mark.parametrize("waits", [True, False])
def test_a_call_that_a_late_rank_completes_is_not_mixed_with_its_next_one(
    tmp_path: Path, waits: bool
) -> None:
    told = complete_late(completes_what_failed, tmp_path, waits)
    # Results of calls that no rank has waited for are undefined.
    assert COMPLETED in told if waits else told == "rebuilt"
