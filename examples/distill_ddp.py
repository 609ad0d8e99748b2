"""Distil two teachers, one after the other, into a student that trains on several ranks.

    torchrun --standalone --nproc_per_node=2 examples/distill_ddp.py

Each rank has slots of its own, and the workers make other samples for each of them. The first rank chooses the
teacher; `switch_model` lets all ranks begin with it at the same step. Samples depend on nothing but teacher, rank and
place in the stream, and streams are ordered, so a second run ends with the same digest, for any number of workers.
The ranks communicate through gloo, or NCCL if each has a GPU. The first rank also starts the fleet, so that one command
is enough.
"""

import argparse
import contextlib
import functools
import hashlib
import os
import signal
import sys

if __name__ == "__main__":
    # The imports below take seconds; until main() listens, Ctrl-C ends the process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import softs_fast as sf
from softs_fast.distill import switch_model

TEACHERS = ("narrow", "wide")
WIDTHS = {"narrow": 16, "wide": 128}
N_INPUTS, N_OUTPUTS = 32, 8
BATCH_SIZE = 32
LEARNING_RATE = 3e-3

SAMPLE = sf.BatchConfig(
    [
        sf.TensorSpec("x", (N_INPUTS,), "float32"),
        sf.TensorSpec("y", (N_OUTPUTS,), "float32"),  # what the teacher makes of x
    ]
)


def main() -> int:
    """Run this rank; returns the exit code, 130 after Ctrl-C."""
    options = parse_options()
    for number in (signal.SIGINT, signal.SIGTERM):  # torchrun sends the latter when another rank has failed
        signal.signal(number, signal.default_int_handler)
    try:
        run(options)
    except KeyboardInterrupt:
        return 130
    return 0


def run(options: argparse.Namespace) -> None:
    """Train on this rank; the first one starts the rest, and reports."""
    device = join_ranks()
    rank = dist.get_rank()
    with contextlib.ExitStack() as stack:
        stack.callback(dist.destroy_process_group)
        environment: list[dict[str, str]] = [{}]
        if rank == 0:
            make_worker_of_seed = functools.partial(make_worker, options.seed)
            fleet = stack.enter_context(sf.Fleet(make_worker_of_seed, n_workers=options.workers))
            environment = [fleet.endpoints.as_environment()]
        dist.broadcast_object_list(environment, src=0, device=device)
        # The endpoints of the first rank's fleet are the defaults from here on.
        os.environ.update(environment[0])
        # Its samples arrive in the slots of the dataset.
        client = stack.enter_context(sf.StudentClient(student_rank=rank, slot_count=1, batch_config=SAMPLE))
        client.hello()
        if rank != 0:
            client.start_sub_listener()
        dataset = sf.DistillIterableDataset(
            student_rank=rank,
            generation_value=client.generation_value,
            slot_count=4 * BATCH_SIZE,
            batch_config=SAMPLE,
            ordered=True,
        )
        loader = stack.enter_context(
            sf.DistillDataLoader(dataset, batch_size=BATCH_SIZE, device=device, steps_per_epoch=options.steps)
        )

        torch.manual_seed(options.seed)
        student = nn.Sequential(nn.Linear(N_INPUTS, 64), nn.ReLU(), nn.Linear(64, N_OUTPUTS)).to(device)
        model = DistributedDataParallel(student)
        optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
        digest = hashlib.sha256()
        for teacher in TEACHERS:
            generation = switch_model(client, teacher, {"width": WIDTHS[teacher]})
            losses, inputs = train(model, optimizer, loader)
            total = mean_over_ranks(losses)
            n_distinct, n_samples = count_distinct(inputs)
            digest.update(total.numpy().tobytes())
            if rank == 0:
                print(
                    f"generation {generation}, teacher {teacher!r}: loss {total[0]:.4f} -> {total[-1]:.4f}, "
                    f"{n_samples:,} samples on {dist.get_world_size()} ranks, {n_distinct:,} of them distinct"
                )
        for parameter in student.parameters():
            digest.update(parameter.detach().cpu().numpy().tobytes())
        if rank == 0:
            print(f"digest of losses and weights: {digest.hexdigest()[:16]}", flush=True)
            client.stop_workers()
        dist.barrier()  # the broker belongs to the first rank: no rank may need it any more


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, loader: sf.DistillDataLoader
) -> tuple[Tensor, Tensor]:
    """Train for one epoch; return this rank's losses, float64 [steps], and all of its x, float32 [n, N_INPUTS]."""
    losses, inputs = [], []
    for batch in loader:
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        inputs.append(batch["x"])
    return torch.tensor(losses, dtype=torch.float64), torch.cat(inputs)


# --- The workers' side ---


def make_worker(seed: int) -> sf.Worker:
    """Return a worker that was not started."""
    return sf.Worker(batch_generator_fn=Teachers(seed), batch_config=SAMPLE)


class Teachers:
    """The generator: networks with one hidden layer and random weights."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(
        self, model_id: str, model_cfg: dict[str, int], n: int, sequences: tuple[int, ...], rank: int
    ) -> dict[str, NDArray[np.generic]]:
        """Return the samples `sequences` of the stream of `rank`, as SAMPLE says, [n, ...] each."""
        weights = np.random.default_rng([self.seed, *model_id.encode()])
        width = model_cfg["width"]
        hidden = weights.standard_normal((N_INPUTS, width)) / N_INPUTS**0.5
        out = weights.standard_normal((width, N_OUTPUTS)) / width**0.5
        # A generator of its own for each sample: it is the same from every worker, and in every batch.
        x = np.stack(
            [np.random.default_rng([self.seed, rank, place]).standard_normal(N_INPUTS) for place in sequences]
        )
        y = np.stack([np.maximum(row @ hidden, 0) @ out for row in x])
        return {"x": x.astype(np.float32), "y": y.astype(np.float32)}


# --- Between the ranks ---


def join_ranks() -> torch.device:
    """Join the ranks that torchrun started; returns this one's device."""
    has_gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if has_gpu else "gloo")
    return device


def mean_over_ranks(values: Tensor) -> Tensor:
    """Return the mean of each value over the ranks, on every rank; float64 [n]."""
    return torch.stack(gather(values)).mean(dim=0)


def count_distinct(inputs: Tensor) -> tuple[int, int]:
    """Return the number of distinct samples of all ranks together, and of all; by their x, float32 [n, N_INPUTS]."""
    everyone = torch.cat(gather(inputs))
    return len(everyone.unique(dim=0)), len(everyone)


def gather(tensor: Tensor) -> list[Tensor]:
    """Return the tensors of all ranks, on every rank; they must be of one shape."""
    device = torch.device("cuda") if dist.get_backend() == "nccl" else torch.device("cpu")
    gathered = [torch.empty_like(tensor, device=device) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, tensor.to(device))
    return [part.cpu() for part in gathered]


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=300, help="of each teacher (%(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="worker processes (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and samples (%(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
