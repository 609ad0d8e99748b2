"""Programs of calls on overlapping groups, drawn from a seed, and what each call must give."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

Tensor = torch.Tensor

SIZE = 4
GROUPS = ((0, 1, 2, 3), (0, 1, 2), (1, 2, 3), (0, 3))
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8)
REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter")
MOVES = ("broadcast", "all_gather", "all_gather_into", "gather", "scatter", "all_to_all", "barrier")
OPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "PRODUCT": torch.mul,
}


@dataclass(frozen=True)
class Step:
    """A call of all members of a group, or a message from one to another.

    Attributes:
        number: Distinguishes the values of this call from those of others.
        members: Ranks of the group.
        root: The root of the call, or the sender.
        to: The receiver.
        tag: Tag of the message.
        length: Elements of a part.
    """

    kind: str
    number: int
    members: tuple[int, ...]
    root: int
    to: int
    tag: int
    length: int
    dtype: torch.dtype
    op: str

    @property
    def channel(self) -> tuple[object, ...]:
        """What keeps the order of its calls; calls of different channels may be made in any order."""
        return (self.members, self.root, self.to, self.tag) if self.kind == "message" else (self.members,)

    def concerns(self, rank: int) -> bool:
        """Whether a rank makes the call."""
        return rank in ((self.root, self.to) if self.kind == "message" else self.members)


def program(seed: int, n_bursts: int) -> list[list[Step]]:
    """Return calls in bursts; those of a burst are made before one of them is awaited."""
    draw = random.Random(seed)
    numbers = iter(range(1 << 30))

    def step() -> Step:
        members = draw.choice(GROUPS)
        root, to = draw.sample(members, 2)
        # Nothing, less than a line, one chunk, and several.
        length = draw.choice(
            (0, 1, 5, 1000, 1000, draw.randrange(40_000), draw.randrange(40_000), draw.randrange(300_000))
        )
        return Step(
            draw.choice((*REDUCTIONS, *MOVES, "message", "message")),
            next(numbers),
            members,
            root,
            to,
            draw.randrange(3),
            length,
            draw.choice(DTYPES),
            draw.choice(list(OPS)),
        )

    return [[step() for _ in range(draw.choice((1, 1, 2, 6)))] for _ in range(n_bursts)]


def in_own_order(steps: Sequence[Step], draw: random.Random) -> list[Step]:
    """Return steps in a random order that keeps that of each channel."""
    channels: dict[object, list[Step]] = {}
    for step in steps:
        channels.setdefault(step.channel, []).append(step)
    queues = [iter(these) for these in channels.values()]
    turns = [queue for queue, these in zip(queues, channels.values(), strict=True) for _ in these]
    draw.shuffle(turns)
    return [next(turn) for turn in turns]


def values(step: Step, rank: int, part: int = 0) -> Tensor:
    """Return what a rank brings: the same in every process."""
    generator = torch.Generator().manual_seed(step.number << 16 | rank << 8 | part)
    if step.dtype.is_floating_point:
        return torch.randn(step.length, generator=generator).to(step.dtype)
    return torch.randint(0, 100, (step.length,), generator=generator).to(step.dtype)


def unset(length: int, dtype: torch.dtype) -> Tensor:
    """Return memory for a result, filled with what no result has."""
    return torch.full(
        (length,), torch.nan if dtype.is_floating_point else torch.iinfo(dtype).max, dtype=dtype
    )


def reduced(rows: Sequence[Tensor], op: str) -> Tensor:
    """Return rows combined in their order, as docs/numerics.md says."""
    dtype = rows[0].dtype
    if op == "PRODUCT":
        return functools.reduce(torch.mul, rows)
    wide = dtype
    if dtype in (torch.float16, torch.bfloat16):
        wide = torch.float32
    elif not dtype.is_floating_point:
        wide = torch.int64
    total = functools.reduce(OPS[op], [row.to(wide) for row in rows])
    if op == "AVG" and dtype.is_floating_point:
        total = total * torch.tensor(1.0 / len(rows), dtype=torch.float64).to(wide)
    elif op == "AVG":
        total = torch.div(total, len(rows), rounding_mode="trunc")
    return total.to(dtype)


Outcome = tuple[Any, list[tuple[Tensor, Tensor]]]


def begin(step: Step, rank: int, group: dist.ProcessGroup | None, is_async: bool) -> Outcome:
    """Make a call; return its work, and pairs of a tensor and what it must have once the call has ended."""
    members, options = step.members, {"group": group, "async_op": is_async}
    own = values(step, rank)
    op = getattr(dist.ReduceOp, step.op)
    results = [unset(step.length, step.dtype) for _ in members]
    each = [values(step, member) for member in members]
    match step.kind:
        case "message" if rank == step.root:
            send = dist.isend if is_async else dist.send
            return send(own, step.to, group=group, tag=step.tag), []
        case "message":
            receive = dist.irecv if is_async else dist.recv
            work = receive(results[0], step.root, group=group, tag=step.tag)
            return work if is_async else None, [(results[0], values(step, step.root))]
        case "barrier":
            return dist.barrier(**options), []
        case "all_reduce":
            return dist.all_reduce(own, op, **options), [(own, reduced(each, step.op))]
        case "reduce":
            wanted = reduced(each, step.op) if rank == step.root else own.clone()
            return dist.reduce(own, step.root, op, **options), [(own, wanted)]
        case "reduce_scatter":
            parts = [values(step, rank, part) for part in members]
            wanted = reduced([values(step, member, rank) for member in members], step.op)
            work = dist.reduce_scatter(results[0], parts, op, **options)
            return work, [(results[0], wanted)]
        case "broadcast":
            mine = own if rank == step.root else results[0]
            return dist.broadcast(mine, step.root, **options), [(mine, values(step, step.root))]
        case "all_gather":
            return dist.all_gather(results, own, **options), list(zip(results, each, strict=True))
        case "all_gather_into":
            whole = unset(step.length * len(members), step.dtype)
            return dist.all_gather_into_tensor(whole, own, **options), [(whole, torch.cat(each))]
        case "gather":
            takes = rank == step.root
            work = dist.gather(own, results if takes else None, step.root, **options)
            return work, list(zip(results, each, strict=True)) if takes else []
        case "scatter":
            parts = [values(step, step.root, part) for part in members]
            work = dist.scatter(results[0], parts if rank == step.root else None, step.root, **options)
            return work, [(results[0], values(step, step.root, rank))]
    assert step.kind == "all_to_all"
    # Rank r sends to rank t the first elements of its values for t: a number that depends on both.
    into = [values(step, member, rank)[: _share(step, member, rank)] for member in members]
    out = [values(step, rank, member)[: _share(step, rank, member)] for member in members]
    whole = unset(sum(map(len, into)), step.dtype)
    work = dist.all_to_all_single(
        whole, torch.cat(out), [len(one) for one in into], [len(one) for one in out], **options
    )
    return work, [(whole, torch.cat(into))]


def _share(step: Step, source: int, target: int) -> int:
    return step.length * ((source + 2 * target + step.number) % 4) // 3


def run(seed: int, n_bursts: int, rank: int, groups: Sequence[Any], pace: int) -> Iterator[str]:
    """Run a program; yield what was wrong.

    Args:
        seed: Seed of the program, the same on all ranks.
        n_bursts: Length of the program.
        rank: This process's number.
        groups: The groups of `GROUPS`; what a rank has for those that it is not in does not matter.
        pace: Number of the run; runs differ in delays, in what is awaited when, and in the order of calls of a burst.
    """
    draw = random.Random(f"{seed} {rank} {pace}")
    pending: list[tuple[Step, Outcome]] = []

    def ended(step: Step, outcome: Outcome) -> Iterator[str]:
        work, pairs = outcome
        if work is not None:
            _ = work.wait() if draw.random() < 0.7 else work.get_future().wait()
        if not all(torch.equal(tensor, wanted) for tensor, wanted in pairs):
            yield f"seed {seed}, run {pace}, rank {rank}: {step}"

    for burst in program(seed, n_bursts):
        own = [step for step in in_own_order(burst, draw) if step.concerns(rank)]
        for step in own:
            if draw.random() < 0.2:
                time.sleep(draw.random() * 3e-3)
            outcome = begin(
                step, rank, groups[GROUPS.index(step.members)], len(burst) > 1 or draw.random() < 0.5
            )
            pending.append((step, outcome))
        draw.shuffle(pending)
        for _ in range(draw.randrange(len(pending) + 1)):
            yield from ended(*pending.pop())
    while pending:
        yield from ended(*pending.pop())
