"""Models in DistributedDataParallel, donors that do nothing, and a host without shared memory."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from members import settle
from small_memory import run_in_small_memory
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import gloo
from waiting import eventually

from softs_fast.averaging import Event, Rules, Schedule, SelectiveAveraging


def trains_in_ddp(say: Callable[[Any], None], rank: int, size: int, folder: str) -> list[Any]:
    """Rank 0 of a group has lost its weights. It takes over those of rank 1, and both go on with the same."""
    with gloo(rank, size, folder):
        torch.manual_seed(0)
        model = DistributedDataParallel(
            torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        held = dict(model.named_parameters())
        if rank == 0:
            with torch.no_grad():
                for weight in model.parameters():
                    weight.fill_(1000.0)

        def train() -> None:
            optimizer.zero_grad()
            model(torch.arange(12.0).view(4, 3) + rank).square().mean().backward()
            optimizer.step()

        events = []
        rules = Rules(every=2, strategy="best_only")
        # A donor that has waited for a core while it copied makes no other snapshot in so few steps.
        schedule = Schedule(max_wait_steps=1)
        with SelectiveAveraging(
            model, optimizer, rules, meet=f"{folder}/place", rank=rank, schedule=schedule
        ) as engine:
            for _ in range(8):
                train()
                events.append(engine.step(0.1 if rank == 0 else 0.9))
                settle(engine)
                dist.barrier()
        assert engine.model is model
        assert all(weight is held[name] for name, weight in model.named_parameters())
        optimizer.param_groups[0]["lr"] = 0.01
        before = model.module[0].weight.detach().clone()
        train()
        assert not torch.equal(model.module[0].weight, before)
        norms = [weight.detach().double().norm().item() for weight in model.parameters()]
        return [sum(event is not None for event in events), norms]


def test_a_model_in_ddp_takes_over_weights_and_its_references_stay(tmp_path: Path) -> None:
    (n_first, first), (n_second, second) = ranks.run(trains_in_ddp, 2, str(tmp_path))
    assert n_first >= 1
    assert n_second == 0
    assert first == second
    assert max(first) < 100.0


def donates_and_then(
    say: Callable[[Any], None], rank: int, size: int, folder: str, way: str
) -> list[Any] | None:
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    rules = Rules(every=2, strategy="best_only")
    with SelectiveAveraging(
        model, optimizer, rules, meet=folder, rank=rank, schedule=Schedule(max_wait_steps=5)
    ) as engine:
        with torch.no_grad():
            for weight in model.parameters():
                weight.fill_(float(rank))
        if rank == 1:
            for _ in range(2):  # it reports its first check
                engine.step(0.9)
                settle(engine)
            Path(folder, "reported").touch()
            say(None)
            if way == "sleeps":
                signal.pause()
            else:
                ctypes.PyDLL(None).pause()  # with the GIL
        eventually(Path(folder, "reported").exists, "the report of the other one")
        event: Event | None = None
        while event is None:
            event = engine.step(0.1)
            settle(engine)
        return [
            event.step,
            event.waited_steps,
            event.donations[0].step,
            model.weight.detach().unique().tolist(),
        ]


@pytest.mark.parametrize("way", ["sleeps", "holds the GIL"])
def test_a_donor_that_does_nothing_gives_its_last_snapshot(tmp_path: Path, way: str) -> None:
    with ranks.start(donates_and_then, 2, str(tmp_path / "place"), way) as running:
        assert running.receive(1) is None
        # Of its first check, at step 2: five steps for an answer, and one to fetch. How often it publishes depends on what
        # publishing costs, so its last snapshot is of its first or of its second step.
        step, waited, donated, weights = running.receive(0)
        assert (step, waited, weights) == (8, 6, [1.0])
        assert donated in (1, 2)


FULL = """
import os, sys, torch
from softs_fast.averaging import Rules, SelectiveAveraging
from softs_fast.errors import SegmentError
model = torch.nn.Linear(1 << 10, 1 << 10)
optimizer = torch.optim.SGD(model.parameters())
engine = SelectiveAveraging(model, optimizer, Rules(), meet=sys.argv[1], rank=0)
for _ in range(2):
    try:
        engine.step(0.5)
    except SegmentError as error:
        print(error)
open("/dev/shm/free", "w").write(str(os.statvfs("/dev/shm").f_bavail))
engine.shutdown()
engine.shutdown()
small = torch.nn.Linear(8, 8)
with SelectiveAveraging(small, None, Rules(), meet=sys.argv[1], rank=0) as engine:
    print(engine.step(0.5))
print(os.listdir("/dev/shm"), os.listdir(sys.argv[1]))
"""


def test_without_shared_memory_the_first_step_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    done = run_in_small_memory(FULL, str(tmp_path / "place"))
    first, second, after, left = done.splitlines()
    assert first.startswith("cannot take 8421376 bytes of shared memory, 1044480 are free")
    assert "enlarge /dev/shm" in first
    assert second == first, "it may be tried again"
    assert (after, left) == ("None", "['free'] []")
