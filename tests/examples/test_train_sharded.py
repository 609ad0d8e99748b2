"""examples/train_sharded.py: a worker is killed between its part of a checkpoint and the end of it, another one comes."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from coordinator_process import Cluster, Lines

from softs_fast.coordination.session.calls import CoordinatorClient

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_sharded.py"
#: Runs the example; the process is killed when it has written its part of the checkpoint of step 20.
VICTIM = f"""
import os, runpy, signal, sys
import torch.distributed.checkpoint as dcp

write = dcp.save

def save(state, *, checkpoint_id):
    write(state, checkpoint_id=checkpoint_id)
    if "step-20-" in checkpoint_id:
        os.kill(os.getpid(), signal.SIGKILL)

dcp.save = save
runpy.run_path({str(EXAMPLE)!r}, run_name="__main__")
"""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Processes that are killed after the test."""
    cluster = Cluster()
    yield cluster
    cluster.end()


def parts() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Return model and optimizer at the beginning."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def undisturbed(n_steps: int) -> dict[str, torch.Tensor]:
    """Return the weights after a training in one process, without FSDP."""
    model, optimizer = parts()
    for step in range(n_steps):
        data = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
        (model(data) - data[:, :4]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


def saved(path: str) -> dict[str, torch.Tensor]:
    """Return the weights of a checkpoint, all parts together."""
    state = {"model": parts()[0].state_dict()}
    dcp.load(state, checkpoint_id=path, no_dist=True)
    return state["model"]


def until(worker: Lines, pattern: str) -> str:
    """Read the lines of a worker up to one that matches; that one."""
    while not re.fullmatch(pattern, line := worker.line()):
        pass
    return line


@pytest.mark.skipif(
    not hasattr(torch.cpu.current_stream(), "record_event"), reason="FSDP2 of this torch needs a GPU"
)
# torch warns that the checkpoint is read by one process, as it is to be.
@pytest.mark.full
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
@pytest.mark.timeout(120)
def test_a_checkpoint_counts_when_all_have_ended_it(cluster: Cluster, tmp_path: Path) -> None:
    coordinator = cluster.coordinator("--min-workers", "1", "--max-workers", "2", "--form-timeout", "20")
    options = [
        f"--coordinator={coordinator.address}",
        f"--folder={tmp_path}",
        "--steps=1000000",
        "--pause=0.02",
    ]
    lives = cluster.add(Lines([str(EXAMPLE), "--seat=0", *options]))
    victim = cluster.add(Lines(["-c", VICTIM, "--seat=1", *options]))
    assert until(lives, "epoch.*") == "epoch 1: worker 0 of 2, from step 0"
    assert victim.wait() == -signal.SIGKILL
    # Both parts of the checkpoint of step 20 are there, but one worker has not said so.
    assert (tmp_path / "step-20-of-epoch-1" / ".metadata").exists()
    until(lives, r"epoch 1 is over: .*")
    assert until(lives, "epoch.*") == "epoch 2: worker 0 of 1, from step 10"
    cluster.add(Lines([str(EXAMPLE), "--seat=1", *options]))
    # Nothing has failed, so no step is lost.
    line = last = ""
    while not line.startswith("epoch"):
        last, line = line, lives.line()
    step = int(last.split()[1])
    assert line == f"epoch 3: worker 0 of 2, from step {step}"
    with CoordinatorClient(coordinator.address) as client:
        done = next(
            status.checkpoint
            for status in client.watch()
            if status.checkpoint is not None and status.checkpoint.step >= step + 10
        )
    for name, expected in undisturbed(done.step).items():
        torch.testing.assert_close(saved(done.path)[name], expected)
