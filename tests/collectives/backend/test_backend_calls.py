"""Each call of torch.distributed gives what its documentation says, at once and later, in dense and in strided tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from backend_ranks import joined

SIZE = 3
# In one epoch, in one chunk, and in several chunks.
LENGTHS = (1, 5, 3000, 400_000)
OPS: dict[Any, Callable[[torch.Tensor], torch.Tensor]] = {
    dist.ReduceOp.SUM: lambda rows: rows.sum(0),
    dist.ReduceOp.AVG: lambda rows: rows.mean(0),
    dist.ReduceOp.MIN: lambda rows: rows.amin(0),
    dist.ReduceOp.MAX: lambda rows: rows.amax(0),
    dist.ReduceOp.PRODUCT: lambda rows: rows.prod(0),
}


def values(rank: int, length: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Return values of a rank that are whole numbers, so that sums are exact."""
    return ((torch.arange(length) * 7 + rank * 3) % 5 + 1).to(dtype)


def rows(length: int) -> torch.Tensor:
    """Return the values of all ranks."""
    return torch.stack([values(rank, length) for rank in range(SIZE)])


def both(call: Callable[..., Any], *args: Any, **options: Any) -> None:
    """Make a call, then again without waiting, and wait then: the result is the same."""
    call(*args, **options)
    work = call(*args, **options, async_op=True)
    assert work.wait()


def reductions(rank: int) -> None:
    for length in LENGTHS:
        for op, expected in OPS.items():
            for call in (None, 1):
                tensor = values(rank, length)
                if call is None:
                    dist.all_reduce(tensor, op=op)
                else:
                    dist.reduce(tensor, call, op=op)
                wanted = expected(rows(length)) if call in (None, rank) else values(rank, length)
                torch.testing.assert_close(tensor, wanted)
    for dtype in (
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.int64,
        torch.int32,
        torch.int8,
        torch.uint8,
    ):
        tensor = values(rank, 100, dtype)
        dist.all_reduce(tensor)
        assert torch.equal(tensor, rows(100).sum(0).to(dtype))
    tensor = torch.tensor([0b1100, 0b1010, 0b0110][rank])
    for op, wanted_bits in ((dist.ReduceOp.BAND, 0), (dist.ReduceOp.BOR, 0b1110), (dist.ReduceOp.BXOR, 0)):
        bits = tensor.clone()
        dist.all_reduce(bits, op=op)
        assert bits == wanted_bits
    turned = torch.tensor([1 + 2j, 3j]) * (rank + 1)
    dist.all_reduce(turned)
    assert torch.equal(turned, torch.tensor([6 + 12j, 18j]))
    true = torch.tensor([rank == 1, False])
    dist.all_reduce(true)
    assert true.tolist() == [True, False]


def scattered_reductions(rank: int) -> None:
    for length in LENGTHS:
        whole = torch.cat([values(rank + to, length) for to in range(SIZE)])
        for op, expected in OPS.items():
            wanted = expected(torch.stack([values(one + rank, length) for one in range(SIZE)]))
            output = torch.empty(length, dtype=torch.float64)
            dist.reduce_scatter_tensor(output, whole, op=op)
            torch.testing.assert_close(output, wanted)
            output.zero_()
            both(dist.reduce_scatter, output, list(whole.chunk(SIZE)), op=op)
            torch.testing.assert_close(output, wanted)


def gathers(rank: int) -> None:
    for length in LENGTHS:
        wanted = rows(length)
        output = torch.empty(SIZE * length, dtype=torch.float64)
        both(dist.all_gather_into_tensor, output, values(rank, length))
        assert torch.equal(output, wanted.flatten())
        # As FSDP does: the input is the own part of the output.
        output = torch.zeros(SIZE, length, dtype=torch.float64)
        output[rank] = values(rank, length)
        dist.all_gather_into_tensor(output.view(-1), output[rank])
        assert torch.equal(output, wanted)
        parts = [torch.empty(length, dtype=torch.float64) for _ in range(SIZE)]
        both(dist.all_gather, parts, values(rank, length))
        assert torch.equal(torch.stack(parts), wanted)
        parts = [torch.zeros(length, dtype=torch.float64) for _ in range(SIZE)]
        both(dist.gather, values(rank, length), parts if rank == 2 else None, dst=2)
        assert torch.equal(torch.stack(parts), wanted if rank == 2 else torch.zeros_like(wanted))
        output = torch.empty(length, dtype=torch.float64)
        both(
            dist.scatter, output, [values(to + 9, length) for to in range(SIZE)] if rank == 1 else None, src=1
        )
        assert torch.equal(output, values(rank + 9, length))
        output = values(rank, length)
        both(dist.broadcast, output, 2)
        assert torch.equal(output, values(2, length))
    halves = torch.full((3, 2), rank, dtype=torch.float8_e4m3fn)
    dist.broadcast(halves, 1)
    assert halves.float().unique().tolist() == [1.0]


def exchanges(rank: int) -> None:
    for length in LENGTHS:
        # Rank r sends (r + to) % 3 times the length to each.
        splits = [(rank + to) % SIZE * length for to in range(SIZE)]
        sent = [values(10 * rank + to, n) for to, n in enumerate(splits)]
        wanted = [values(10 * one + rank, (one + rank) % SIZE * length) for one in range(SIZE)]
        output = torch.empty(sum(splits), dtype=torch.float64)
        both(dist.all_to_all_single, output, torch.cat(sent), splits, splits)
        assert torch.equal(output, torch.cat(wanted))
        parts = [torch.empty_like(one) for one in wanted]
        both(dist.all_to_all, parts, sent)
        assert all(torch.equal(one, other) for one, other in zip(parts, wanted, strict=True))


def strided(rank: int) -> None:
    tensor = torch.zeros(4, 6)
    tensor.t()[:3] = rank + 1
    both(dist.all_reduce, tensor.t()[:3])
    assert tensor.sum(0).tolist() == [72.0] * 3 + [0.0] * 3
    parts = [torch.zeros(3, 2).t() for _ in range(SIZE)]
    dist.all_gather(parts, torch.arange(6.0).view(2, 3) + rank)
    assert [one.tolist() for one in parts] == [
        (torch.arange(6.0).view(2, 3) + one).tolist() for one in range(SIZE)
    ]
    nothing = torch.zeros(0, 3)
    both(dist.all_reduce, nothing)
    both(dist.broadcast, nothing, 1)


def objects_and_groups(rank: int) -> None:
    objects: list[Any] = [None] * SIZE
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
    assert objects == [{"rank": one, "text": "x" * one} for one in range(SIZE)]
    # Overlapping groups; calls on each keep their own order.
    first, last = dist.new_group([0, 1]), dist.new_group([1, 2])
    works, tensors = [], []
    for number in range(20):
        for members, group in (([0, 1], first), ([1, 2], last)):
            if rank in members:
                tensors.append(torch.full((50,), float(number)))
                works.append(dist.all_reduce(tensors[-1], group=group, async_op=True))
    for work in reversed(works):
        work.wait()
    assert all(
        one.unique().tolist() == [2.0 * (at // (2 if rank == 1 else 1))] for at, one in enumerate(tensors)
    )
    dist.barrier()


def messages(rank: int) -> None:
    left, right = (rank - 1) % SIZE, (rank + 1) % SIZE
    for length in LENGTHS:
        got = torch.empty(length, dtype=torch.float64)
        operations = [dist.P2POp(dist.isend, values(rank, length), right), dist.P2POp(dist.irecv, got, left)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        assert torch.equal(got, values(left, length))
    if rank == 0:
        for tag in (1, 2, 1, 3):
            dist.send(torch.tensor([float(tag)] * 40_000), 1, tag=tag)
        dist.send(torch.zeros(0), 1)
        dist.send(torch.zeros(3), 1)
        dist.send(torch.ones(2), 1)
    if rank == 1:
        # Those of another tag are kept, and those of one tag stay in order.
        for tag in (3, 1, 2, 1):
            got = torch.empty(40_000)
            dist.recv(got, 0, tag=tag)
            assert got.unique().tolist() == [tag]
        dist.recv(torch.zeros(0), 0)
        with pytest.raises(ValueError, match="rank 0 sent 12 bytes, and 8 are received"):
            dist.recv(torch.zeros(2), 0)
        got = torch.zeros(2)
        dist.recv(got, 0)
        assert got.tolist() == [1.0, 1.0]


def futures(rank: int) -> None:
    """Callbacks may make calls and wait for them, also for calls that were made before."""
    done: list[float] = []
    tensors = [torch.full((2000,), float(rank)) for _ in range(4)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    second = works[1].get_future()

    def again(ended: torch.futures.Future[list[torch.Tensor]]) -> list[torch.Tensor]:
        second.wait()
        (tensor,) = ended.value()
        dist.all_reduce(tensor, async_op=True).get_future().wait()
        done.append(float(tensor[0]))
        return [tensor]

    results = [work.get_future().then(again).wait() for work in works]
    assert done == [9.0] * 4
    assert [float(one[0][0]) for one in results] == [9.0] * 4


def forgotten(rank: int) -> None:
    """What a call returns need not be kept, nor its tensors."""
    kept = torch.zeros(2, 300_000)
    for number in range(30):
        tensor = torch.full((300_000,), float(number))
        dist.all_reduce(tensor, async_op=True)
        del tensor
        dist.all_reduce(kept.t(), async_op=True)
    again = torch.ones(3)
    dist.all_reduce(again, async_op=True).wait()
    assert again.tolist() == [3.0] * 3


def everything(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    with joined(rank, size, folder):
        for check in (
            reductions,
            scattered_reductions,
            gathers,
            exchanges,
            strided,
            objects_and_groups,
            messages,
            futures,
            forgotten,
        ):
            check(rank)
            dist.barrier()


def test_each_call_gives_what_it_should(tmp_path: Path) -> None:
    told = ranks.run(everything, SIZE, str(tmp_path))
    assert told == [None] * SIZE


def alone(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    with joined(rank, size, folder):
        reductions_of_one = torch.ones(3)
        both(dist.all_reduce, reductions_of_one)
        parts = [torch.zeros(3)]
        both(dist.all_gather, parts, reductions_of_one)
        both(dist.all_to_all, [torch.zeros(3)], parts)
        assert parts[0].tolist() == [1.0] * 3
        dist.barrier()


def test_a_group_may_have_one_rank(tmp_path: Path) -> None:
    assert ranks.run(alone, 1, str(tmp_path)) == [None]
