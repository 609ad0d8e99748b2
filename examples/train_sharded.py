"""A model of which each worker has a part (FSDP2), and which goes on when workers are lost or come.

No worker has all of the model, so a lost one takes a part of it along: all begin with the last checkpoint that all
members had written (torch.distributed.checkpoint), which may be of another number of workers. When a worker comes or is
drained, nothing has failed, and the members write a checkpoint before the next epoch.

    softs-fast coordinator run --min-workers 1 --max-workers 4 --form-timeout 5
    python examples/train_sharded.py --folder /tmp/checkpoints        # up to four times, each in a shell of its own
"""

from __future__ import annotations

import argparse
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from softs_fast.collectives import ReduceOp, TorchStrategy
from softs_fast.coordination.node import Epoch, Membership
from softs_fast.errors import PeerLost

#: How long to wait for an epoch, and for others in a call.
WAIT_S = 600.0
SAVE_EVERY = 10


class Training:
    """A sharded model in one epoch; all of it ends with the epoch."""

    def __init__(self, epoch: Epoch, strategy: TorchStrategy) -> None:
        self.strategy = strategy
        self.step = epoch.table.resume_step
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
        for layer in self.model:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer)
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        if epoch.table.checkpoint:
            state = self.state()
            dcp.load(state, checkpoint_id=epoch.table.checkpoint)
            set_state_dict(
                self.model,
                self.optimizer,
                model_state_dict=state["model"],
                optim_state_dict=state["optimizer"],
            )

    def state(self) -> dict[str, Any]:
        """Return this worker's parts of model and optimizer."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def make_step(self) -> None:
        """Train on the data of the next step, which depends on its number alone."""
        draws = torch.Generator().manual_seed(self.step)
        data = torch.randn(16, 8, generator=draws)
        # FSDP2 takes the mean of the gradients of all workers.
        (self.model(data) - data[:, :4]).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1

    def any_wants(self, end: bool) -> bool:
        """Return whether a member wants this step to be the last one of the epoch; the same on all."""
        flag = torch.tensor([int(end)])
        self.strategy.all_reduce(flag, ReduceOp.MAX)
        return bool(flag)


def join(epoch: Epoch) -> TorchStrategy:
    """Make torch's default process group for the members of an epoch."""
    epoch.meet(WAIT_S)
    timeout = timedelta(seconds=WAIT_S)
    dist.init_process_group(
        "softs", store=epoch.store, rank=epoch.rank, world_size=epoch.size, timeout=timeout
    )
    return TorchStrategy(dist.group.WORLD)


class Engine:
    """The process group of an epoch, which the coordinator ends from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._strategy: TorchStrategy | None = None

    def open(self, member: Membership, epoch: Epoch) -> TorchStrategy:
        """Make it; raise PeerLost if the epoch is over already."""
        strategy = join(epoch)
        with self._lock:
            self._strategy = strategy
        if member.fence is not None and not member.fence.planned:
            raise PeerLost(member.fence.text)
        return strategy

    def end(self, why: str) -> None:
        """End its calls."""
        with self._lock:
            if self._strategy is not None:
                self._strategy.give_up(why)

    def close(self) -> None:
        """Release it; all of its calls have ended."""
        with self._lock:
            if self._strategy is not None:
                self._strategy.close()
            self._strategy = None
        if dist.is_initialized():
            dist.destroy_process_group()


def save(member: Membership, epoch: Epoch, training: Training, folder: Path) -> None:
    """Write a checkpoint; it counts if no member is lost until all have written their parts."""
    path = str(folder / f"step-{training.step}-of-epoch-{epoch.table.epoch}")
    with member.checkpoint(path, training.step):
        dcp.save(training.state(), checkpoint_id=path)
    # No member ends the epoch before all have said so.
    training.strategy.barrier()


def run_epoch(member: Membership, epoch: Epoch, training: Training, folder: Path, options: Any) -> bool:
    """Train until the end of the epoch; return whether all steps are made."""
    while training.step < options.steps:
        is_last = training.any_wants(member.fence is not None)
        if not is_last:
            member.progress(training.step + 1)
            training.make_step()
            time.sleep(options.pause)
            print(f"step {training.step} of {epoch.size} workers", flush=True)
        if is_last or training.step % SAVE_EVERY == 0:
            save(member, epoch, training, folder)
        if is_last:
            return False
    return True


def main() -> None:
    """Train with all workers that the coordinator names."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--coordinator", default="127.0.0.1:29401")
    parser.add_argument("--folder", type=Path, required=True, help="of checkpoints; the same for all workers")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seat", type=int, help="number of the worker; any that is free if not given")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds per step")
    options = parser.parse_args()
    engine = Engine()
    with Membership(options.coordinator, seat=options.seat, on_end=engine.end) as member:
        is_done, why = False, "a member begins anew"
        while not is_done:
            epoch = member.next_epoch(WAIT_S, why)
            print(
                f"epoch {epoch.table.epoch}: worker {epoch.rank} of {epoch.size}, from step "
                f"{epoch.table.resume_step}",
                flush=True,
            )
            try:
                training = Training(epoch, engine.open(member, epoch))
                is_done = run_epoch(member, epoch, training, options.folder, options)
            except (PeerLost, RuntimeError, dcp.api.CheckpointException) as error:
                # A member was lost: its peers see errors of different kinds.
                why = f"{type(error).__name__}: {error}"
                print(
                    f"epoch {epoch.table.epoch} is over: {member.fence.text if member.fence else why}",
                    flush=True,
                )
            if is_done:
                print(f"the sum of all weights is {weights(training):.9f}", flush=True)
            engine.close()


def weights(training: Training) -> float:
    """Return the sum of the weights of all workers."""
    parts = [parameter.detach().to_local().double().sum() for parameter in training.model.parameters()]
    total = torch.stack(parts).sum().reshape(1)
    training.strategy.all_reduce(total, ReduceOp.SUM)
    return float(total)


if __name__ == "__main__":
    main()
