"""torch's own tests of a backend, which are in its package: what gloo passes, the backend passes."""

from __future__ import annotations

import os
import unittest
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from backend_ranks import pretend_hosts
from waiting import eventually

from softs_fast.collectives.backend import register

pytest.importorskip("expecttest", reason="torch's tests need it")

SIZE = 4
# Longer than the longest test of the suite beside other load.
SUITE_S = 600
#: Tests that cannot pass, by what is not of the backend.
ELSEWHERE = {
    "needs devices, or packages that the tests do not install": [
        "test_SyncBatchNorm_process_group",
        "test_all_to_all_cuda",
        "test_all_to_all_cuda_complex",
        "test_all_to_all_full_group_cuda",
        "test_batch_isend_irecv_mixed_backend_err",
        "test_batch_isend_irecv_op_err",
    ],
    "makes its model for the backends gloo and nccl alone": [
        "test_accumulate_gradients_no_sync",
        "test_accumulate_gradients_no_sync_allreduce_hook",
        "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
        "test_accumulate_gradients_no_sync_grad_is_view",
    ],
    "torch 2.15 asks the work of a backend in Python neither is_completed() nor for the rank of the sender": [
        "test_irecv",
        "test_isend",
        "test_isend_autograd_profiler",
        "test_isend_torch_profiler",
        "test_send_recv_any_source",
        "test_send_recv_any_source_autograd_profiler",
        "test_send_recv_any_source_torch_profiler",
    ],
    "expects the name that torch gives to its own backends alone": ["test_ddp_logging_data_cpu"],
    "expects an error of gloo, with which torch compares calls if TORCH_DISTRIBUTED_DEBUG is DETAIL": [
        "test_barrier_timeout_full_group",
        "test_barrier_timeout_global",
    ],
}


def meet(folder: str, point: str, rank: int, size: int) -> None:
    """Return once all ranks are at `point`."""
    Path(folder, f"{point} {rank}").touch()
    here = [Path(folder, f"{point} {one}") for one in range(size)]
    eventually(lambda: all(one.exists() for one in here), "all ranks", within_s=SUITE_S)


def suite(say: Callable[[Any], None], rank: int, size: int, folder: str, hosts: list[int]) -> None:
    """Run each test in this process, in a group of its own; report its name and what became of it."""
    backend = "softs"
    if len(hosts) > 1:
        backend = "softs+plain"
        pretend_hosts(hosts)
    os.environ.update(
        BACKEND=backend, WORLD_SIZE=str(size), TEMP_DIR=f"{folder}/shared", INIT_METHOD="env://"
    )
    from torch.testing._internal.common_distributed import DistTestCases

    for feature in ("plugin", "ddp"):
        DistTestCases.backend_feature[feature].add(backend)
    # Objects that the tests send are made when they are imported, the same on each rank.
    torch.manual_seed(0)
    from torch.testing._internal.distributed import distributed_test as of_torch

    class Suite(of_torch.TestDistBackend, of_torch.DistributedTest._DistTestBase):  # type: ignore[misc]
        world_size = size

    register()
    left_out = {name for names in ELSEWHERE.values() for name in names}
    for number, name in enumerate(sorted(set(dir(Suite)) - left_out)):
        if not name.startswith("test_") or "nccl" in name or "gpu" in name:
            continue
        test = Suite(name)
        test.rank, test.file_name = rank, f"{folder}/{number}"
        torch.manual_seed(1)
        of_torch.Barrier.barrier_id = 1000 * number
        # The limit of some is seconds, which are for the test alone: one rank may end the one before long after another.
        meet(folder, f"{number} begins", rank, size)
        limit = timedelta(seconds=of_torch.CUSTOM_PG_TIMEOUT.get(name, 60))
        dist.init_process_group(
            backend, init_method=f"file://{test.file_name}", rank=rank, world_size=size, timeout=limit
        )
        # torch compares calls through gloo once a test asked for it: a rank that leaves at once, as a skipped test
        # lets it, closes connections that others have not found complete yet, and they fail.
        meet(folder, f"{number} has a group", rank, size)
        try:
            getattr(test, name)()
            outcome = "passed"
        except (unittest.SkipTest, SystemExit):
            outcome = "skipped"
        except BaseException as error:
            outcome = f"{type(error).__name__}: {error}"
        dist.destroy_process_group()
        say((name, outcome))
    say(("", ""))


@pytest.mark.full
@pytest.mark.timeout(SUITE_S)
@pytest.mark.parametrize("hosts", [[4], [2, 2]], ids=str)
def test_the_suite_of_torch_passes(tmp_path: Path, hosts: list[int]) -> None:
    for folder in ("barrier", "test_dir", "init_dir"):
        (tmp_path / "shared" / folder).mkdir(parents=True)
    counts: Counter[str] = Counter()
    failed = []
    with ranks.start(suite, SIZE, str(tmp_path), hosts) as running:
        for rank in range(SIZE):
            # Some tests wait for a time-out; the watchdog is that of the whole.
            while running.pipes[rank].poll(SUITE_S):
                told = running.pipes[rank].recv()
                assert not isinstance(told, ranks.Raised), told.trace
                name, outcome = told
                if not name:
                    break
                counts[outcome] += 1
                if outcome not in ("passed", "skipped"):
                    failed.append(f"rank {rank}: {name}: {outcome[-500:]}")
    assert not failed, "\n".join(failed)
    assert counts["passed"] >= 85 * SIZE
