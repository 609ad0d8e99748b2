"""Buckets that all ranks have mapped give the bits of staged ones, and leave nothing behind."""

from __future__ import annotations

import copy
import gc
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from backend_ranks import joined
from mapped_ranks import CALLS_BEFORE, descriptors, in_backward, n_in_place, reduce, shared_files
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from waiting import eventually

from softs_fast.collectives.backend import shared_tensors

#: DistributedDataParallel makes its buckets anew after the first step, so the fifth is the first one in place.
N_STEPS = 7


def net() -> torch.nn.Module:
    """Return a network with buckets on both sides of the smallest size."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(40, 600), torch.nn.ReLU(), torch.nn.Linear(600, 70), torch.nn.Linear(70, 9)
    )


def trained(group: dist.ProcessGroup, rank: int, **options: Any) -> torch.Tensor:
    """Return the weights after some steps; every third one accumulates two passes."""
    module = net()
    hook = options.pop("hook", None)
    model = DistributedDataParallel(module, process_group=group, bucket_cap_mb=0.1, **options)
    if hook is not None:
        model.register_comm_hook(group, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(rank)
    for step in range(N_STEPS):
        optimizer.zero_grad()
        if step % 3 == 2 and not options.get("static_graph"):
            with model.no_sync():
                model(torch.randn(4, 40, generator=generator)).square().mean().backward()
        model(torch.randn(4, 40, generator=generator)).square().mean().backward()
        optimizer.step()
    return torch.cat([one.detach().flatten() for one in module.parameters()])


def mean(group: dist.ProcessGroup, bucket: dist.GradBucket) -> Any:
    work = dist.all_reduce(bucket.buffer(), op=dist.ReduceOp.AVG, group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "views": {"gradient_as_bucket_view": True},
    "unused": {"find_unused_parameters": True},
    "static graph": {"static_graph": True},
    # DDP refuses annotations that are texts. The tensor that this hook reduces is another one in each call.
    "bfloat16": {"hook": lambda group, bucket: bf16_compress_hook(group, bucket)},
    "mean": {"hook": lambda group, bucket: mean(group, bucket)},
}


def trains(say: Callable[[Any], None], rank: int, size: int, folder: str) -> list[str]:
    wrong = []
    with joined(rank, size, folder):
        softs = dist.group.WORLD
        assert softs is not None
        gloo = dist.new_group(backend="gloo")
        for name, options in WAYS.items():
            before = n_in_place()
            weights = {"mapped": trained(softs, rank, **copy.copy(options))}
            if (n_in_place() > before) != (name != "bfloat16"):
                wrong.append(f"{name}: {n_in_place() - before} calls in place")
            before = n_in_place()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(shared_tensors, "_SMALLEST_BYTES", 1 << 40)
                weights["staged"] = trained(softs, rank, **copy.copy(options))
            assert n_in_place() == before
            # Of three ranks gloo adds in the order of its ring, and it has no mean.
            if size == 2 and name != "mean":
                weights["gloo"] = trained(gloo, rank, **copy.copy(options))
            wrong += [
                f"{name}: {other}" for other in weights if not torch.equal(weights["mapped"], weights[other])
            ]
    return wrong


@pytest.mark.parametrize("size", [2, 3])
def test_ddp_ends_with_the_same_weights(tmp_path: Path, size: int) -> None:
    assert ranks.run(trains, size, str(tmp_path)) == [[]] * size


def made_anew(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    with joined(rank, size, folder):
        group = dist.group.WORLD
        assert group is not None
        first = trained(group, rank)
        gc.collect()
        dist.barrier(async_op=True).wait()  # type: ignore[union-attr]
        before = descriptors()
        for _ in range(4):
            n_before = n_in_place()
            assert torch.equal(trained(group, rank), first)
            assert n_in_place() > n_before
            gc.collect()
            # The works of calls that have ended are dropped with the next one.
            dist.barrier(async_op=True).wait()  # type: ignore[union-attr]
            dist.barrier()
            assert shared_files() == []
        assert descriptors() == before


def test_models_that_are_made_anew_leave_no_memory_and_no_descriptor(tmp_path: Path) -> None:
    assert ranks.run(made_anew, 2, str(tmp_path)) == [None] * 2


def all_kinds(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    with joined(rank, size, folder):
        moved = torch.empty(1 << 15)
        view = moved[100:200]
        n_calls = CALLS_BEFORE + 2
        reduce(moved, rank, size, n_calls)
        assert n_in_place() == 2
        assert (view == moved[100]).all()
        # Its memory is of no file of /dev/shm, which other programs need; each rank has it once for each rank.
        assert shared_files() == ["/memfd:softs-tensor (deleted)"] * size
        moved.requires_grad_()
        with torch.no_grad():
            reduce(moved, rank, size)
        assert n_in_place() == 3
        for dtype in (torch.bfloat16, torch.int64, torch.complex64):
            reduce(torch.empty(1 << 16, dtype=dtype), rank, size, n_calls)
        assert n_in_place() == 9

        whole = torch.empty(1 << 17)
        kept = torch.empty(1 << 16)
        array = kept.numpy()
        for tensor in (
            torch.empty(1 << 13),
            whole[:-1],
            whole[1:],
            kept,
            torch.empty(1 << 16).share_memory_(),
        ):
            address = tensor.data_ptr()
            reduce(tensor, rank, size, n_calls)
            assert tensor.data_ptr() == address
        assert (kept.numpy() == array).all()
        outside = torch.ones(1 << 16)
        for _ in range(n_calls):
            dist.all_reduce(outside)
        assert n_in_place() == 9


def test_tensors_of_which_a_program_may_keep_the_address_are_not_moved(tmp_path: Path) -> None:
    assert ranks.run(all_kinds, 2, str(tmp_path)) == [None] * 2


def others(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    """Have one rank come with another tensor than it came with before."""
    with joined(rank, size, folder):
        first = torch.empty(1 << 16)
        reduce(first, rank, size, CALLS_BEFORE + 1)
        assert n_in_place() == 1
        second = torch.empty(1 << 16)
        # As Join does: the call is staged, and the next one is not.
        reduce(second if rank == 0 else first, rank, size)
        reduce(first, rank, size)
        assert n_in_place() == 2
        reduce(second if rank == 0 else first, rank, size, 2 * CALLS_BEFORE)
        reduce(first, rank, size, 2)
        third = torch.empty(1 << 16)
        reduce(third, rank, size, CALLS_BEFORE + 1)
        # In torch 2.15 the process crashes there, if the storage is shared and nothing else.
        with pytest.raises(RuntimeError, match="not resizable"):
            third.resize_(1 << 17)


def test_ranks_with_other_tensors_than_before_stage_them(tmp_path: Path) -> None:
    assert ranks.run(others, 3, str(tmp_path)) == [None] * 3


def pending(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    with joined(rank, size, folder):
        tensor = torch.empty(1 << 16)
        reduce(tensor, rank, size, CALLS_BEFORE)
        tensor.fill_(1.0)
        address = tensor.data_ptr()
        if rank == 1:
            eventually(Path(folder, "both are given").exists)
        part = dist.all_reduce(tensor[:16], async_op=True)
        works: list[Any] = [part]
        in_backward(lambda: works.append(dist.all_reduce(tensor, async_op=True)))
        if rank == 0:
            assert tensor.data_ptr() == address
            Path(folder, "both are given").touch()
        for work in works:
            work.wait()
        assert tensor[:17].tolist() == [4.0] * 16 + [2.0]
        reduce(tensor, rank, size, 2)
        assert n_in_place() > 0


def test_a_tensor_of_a_pending_call_stays_where_it_is(tmp_path: Path) -> None:
    assert ranks.run(pending, 2, str(tmp_path)) == [None] * 2


def cannot(say: Callable[[Any], None], rank: int, size: int, folder: str, step: str) -> None:
    move = shared_tensors.SharedTensors._move

    def limited(*arguments: Any) -> None:
        if step == "move":
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
        if step == "replace":
            # It has one more descriptor, which torch takes.
            free = os.dup(0)
            os.close(free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, limits[1]))
        move(*arguments)
        if step == "open":
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with joined(rank, size, folder), pytest.MonkeyPatch.context() as patch:
        tensor = torch.empty(1 << 15)
        if rank == 1:
            patch.setattr(shared_tensors.SharedTensors, "_move", limited)
            if step == "many":
                patch.setattr(shared_tensors, "_MOST", 0)
        reduce(tensor, rank, size, CALLS_BEFORE + 3)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert n_in_place() == 0
        # The own one stays where it is; those of other ranks are not kept.
        assert len(shared_files()) == (0 if rank == 1 and step in ("many", "move") else 1)
        check_fork(tensor)


def check_fork(tensor: torch.Tensor) -> None:
    """Check that what a fork writes is its own."""
    dist.barrier()
    child = os.fork()
    if child == 0:
        tensor.fill_(17.0)
        os._exit(int(tensor.sum() == 17.0 * tensor.numel()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert not (tensor == 17.0).any()
    dist.barrier()


@pytest.mark.parametrize("step", ["many", "move", "replace", "open"])
def test_all_ranks_stage_where_one_cannot_take_part(tmp_path: Path, step: str) -> None:
    assert ranks.run(cannot, 3, str(tmp_path), step) == [None] * 3


def forks(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    with joined(rank, size, folder):
        tensor = torch.empty(1 << 16)
        reduce(tensor, rank, size, CALLS_BEFORE + 1)
        check_fork(tensor)
        reduce(tensor, rank, size)
        assert n_in_place() == 2


def test_a_fork_writes_to_memory_of_its_own(tmp_path: Path) -> None:
    assert ranks.run(forks, 2, str(tmp_path)) == [None] * 2
