"""Gradients that are reduced while a backward pass computes others: the weights of DistributedDataParallel over gloo."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from waiting import eventually

from softs_fast.collectives import Schedule, ShmStrategy
from softs_fast.collectives.host import overlap
from softs_fast.coordination.node import TrainingState
from softs_fast.errors import ConfigError, PeerLost

WIDTH = 24


class Net(nn.Module):
    """Layers of which the ranks may use some.

    Args:
        checkpoints: How activations are computed again; None for not at all.
        is_mixed: Whether layers have three dtypes.
    """

    def __init__(self, checkpoints: bool | None = None, is_mixed: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.heads = nn.ModuleList(nn.Linear(WIDTH, 1) for _ in range(3))
        self._checkpoints = checkpoints
        if is_mixed:
            self.layers[1].to(torch.float64)
            self.layers[2].to(torch.bfloat16)

    def forward(self, rows: torch.Tensor, heads: tuple[int, ...] = (0, 1, 2)) -> torch.Tensor:
        for layer in self.layers:
            given = rows.to(layer.weight.dtype)
            if self._checkpoints is None:
                rows = torch.relu(layer(given))
            else:
                rows = torch.relu(checkpoint(layer, given, use_reentrant=self._checkpoints))
        return torch.stack([self.heads[one](rows.float()).square().mean() for one in heads]).sum()


def tied() -> Net:
    net = Net()
    net.layers[0].weight = net.layers[3].weight
    return net


def frozen() -> Net:
    net = Net()
    net.layers[2].requires_grad_(False)
    net.heads[0].bias.requires_grad_(False)
    return net


def every_head(rank: int, step: int) -> tuple[int, ...]:
    return (0, 1, 2)


def some_heads(rank: int, step: int) -> tuple[int, ...]:
    """Head 1 has gradients on one rank; head 2 has them in the first step only, and on no rank afterwards."""
    return (0, *((1,) if rank == 0 else ()), *((2,) if step == 0 else ()))


# By name: the model, the heads that a rank uses in a step, and options of `trained`.
TRAININGS: dict[str, tuple[Callable[[], Net], Callable[[int, int], tuple[int, ...]], dict[str, Any]]] = {
    "plain": (Net, every_head, {}),
    "accumulated": (Net, every_head, {"n_batches": 3}),
    "unused": (Net, some_heads, {"n_batches": 2, "find_unused_parameters": True}),
    "shared": (tied, every_head, {}),
    "frozen": (frozen, every_head, {}),
    "mixed": (lambda: Net(is_mixed=True), every_head, {}),
    "checkpoint": (lambda: Net(checkpoints=False), every_head, {}),
    "reentrant checkpoint": (lambda: Net(checkpoints=True), every_head, {}),
    "compiled": (Net, every_head, {"compiled": True}),
    "scaled": (Net, every_head, {"scale": 1024.0}),
}


def trained(
    net: Net,
    heads_of: Callable[[int, int], tuple[int, ...]],
    rank: int,
    strategy: ShmStrategy | None,
    *,
    n_batches: int = 1,
    scale: float | None = None,
    compiled: bool = False,
    **ddp: Any,
) -> torch.Tensor:
    """Train, with DistributedDataParallel if there is no strategy; return all weights.

    Args:
        net: Model.
        heads_of: What a rank uses of it in a step.
        rank: This rank.
        strategy: Strategy of the ranks.
        n_batches: Number of batches of which the gradients are added up.
        scale: First scale of the loss; a step in which the gradients of one rank overflow is skipped. None for no scaling.
        compiled: Whether the model is compiled.
        ddp: Options of DistributedDataParallel.
    """
    # AdamW changes also weights of which the gradient is zero.
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)

    def apply() -> None:
        scaler.step(optimizer)
        scaler.update()

    state = TrainingState(net, optimizer, apply=apply)
    model: Any = net
    if strategy is None:
        # torch.compile refuses a first bucket that is larger than the others.
        model = DistributedDataParallel(net, bucket_cap_mb=25 if compiled else 0.002, **ddp)
    called = torch.compile(model, backend="aot_eager") if compiled else model
    generator = torch.Generator().manual_seed(rank)
    for step in range(6):
        for batch in range(n_batches):
            is_last = batch == n_batches - 1
            rows = torch.randn(8, WIDTH, generator=generator)
            if scale is not None and (rank, step) == (0, 1):
                rows.fill_(torch.inf)
            # A reentrant checkpoint needs an input with a gradient.
            rows.requires_grad_()
            with model.no_sync() if strategy is None and not is_last else nullcontext():
                loss = scaler.scale(called(rows, heads_of(rank, step)))
                if strategy is not None and is_last:
                    state.backward(strategy, loss)
                else:
                    loss.backward()
        state.apply()
    assert scale is None or scaler.get_scale() == scale / 2, "one step is skipped"
    return weights_of(net)


def weights_of(net: nn.Module) -> torch.Tensor:
    return torch.cat([one.detach().flatten().double() for one in net.parameters()])


def joined(rank: int, size: int, folder: str) -> ShmStrategy:
    """Join a group of gloo, and one in shared memory; several buckets are under way at once."""
    overlap.FIRST_BYTES, overlap.BUCKET_BYTES = 1, 3000
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=size)
    strategy = ShmStrategy(timeout_s=ranks.WATCHDOG_S, schedule=Schedule(1 << 15, 1 << 16))
    return strategy.init(rank, size, dist.group.WORLD)


def trains(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    """Say after each training how far its weights are from those of gloo."""
    with joined(rank, size, folder) as strategy:
        for name, (made, heads_of, options) in TRAININGS.items():
            ours = trained(made(), heads_of, rank, strategy, **options)
            theirs = trained(made(), heads_of, rank, None, **options)
            assert not torch.equal(ours, weights_of(made())), name
            say((name, 0.0 if torch.equal(ours, theirs) else float((ours - theirs).abs().max())))


def test_trainings_end_with_the_weights_of_gloo_to_the_bit(tmp_path: Path) -> None:
    with ranks.start(trains, 2, str(tmp_path)) as running:
        for name in TRAININGS:
            assert [running.receive(rank) for rank in range(2)] == [(name, 0.0)] * 2


class Hasty:
    """A queue of which the calls end before the pass goes on."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def submit(self, call: Any, timeout_s: float) -> Any:
        outcome = self._queue.submit(call, timeout_s)
        outcome.wait()
        return outcome

    def close(self) -> None:
        self._queue.close()


def viewed(say: Callable[[Any], None], rank: int, size: int, folder: str) -> list[list[float]]:
    """The gradient of one parameter is a view of what the rest of the pass reads."""
    n = overlap.FIRST_BYTES // 4
    with joined(rank, size, folder) as strategy:
        named = {"first": nn.Parameter(torch.ones(n)), "last": nn.Parameter(torch.ones(1, n))}
        with strategy.overlap(named) as begun:
            begun.queue = Hasty(begun.queue)  # type: ignore[assignment]
            ((named["first"] * (rank + 1.0) + named["last"].squeeze(0)) * (rank + 2.0)).sum().backward()
            begun.all_reduce_gradients(
                {name: one.grad for name, one in named.items() if one.grad is not None}
            )
        return [one.grad.unique().tolist() for one in named.values() if one.grad is not None]


def test_a_gradient_is_not_changed_where_the_pass_reads_it(tmp_path: Path) -> None:
    assert ranks.run(viewed, 2, str(tmp_path)) == [[[4.0], [2.5]]] * 2


def half_begun(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    named = {"trained": nn.Parameter(torch.ones(3)), "constant": torch.ones(3)}
    with joined(rank, size, folder) as strategy:
        with pytest.raises(RuntimeError, match="require"), strategy.overlap(named):
            pass
        for _ in range(2):
            named["trained"].sum().backward()


def test_a_block_that_cannot_begin_leaves_no_hook(tmp_path: Path) -> None:
    ranks.run(half_begun, 1, str(tmp_path))


def means(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    """With three ranks sums are rounded; they are those of one reduction after the pass."""
    with joined(rank, size, folder) as strategy:
        net = Net()
        after = copy.deepcopy(net)
        rows = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(rank))
        made = [TrainingState(one, torch.optim.SGD(one.parameters())) for one in (net, after)]
        made[0].backward(strategy, net(rows, some_heads(rank, 1)))
        after(rows, some_heads(rank, 1)).backward()
        made[1].reduce(strategy)
        for ours, theirs in zip(net.parameters(), after.parameters(), strict=True):
            assert (ours.grad is None) == (theirs.grad is None)
            assert ours.grad is None or torch.equal(ours.grad, theirs.grad)


def test_means_of_three_ranks_are_those_of_one_reduction_after_the_pass(tmp_path: Path) -> None:
    assert ranks.run(means, 3, str(tmp_path)) == [None] * 3


class Between(torch.autograd.Function):
    """Calls a function in the backward pass."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, call: Callable[[], object]) -> torch.Tensor:
        ctx.call = call
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ctx.call()
        return gradients[0], None


class Chain:
    """Layers of one weight each, with a function that is called in the backward pass before each of them."""

    def __init__(self, rank: int, call: Callable[[int], object]) -> None:
        self.model = nn.ParameterList(nn.Parameter(torch.ones(())) for _ in range(4))
        self.state = TrainingState(self.model, torch.optim.SGD(self.model.parameters()))
        rows = torch.full((), rank + 1.0)
        for number, weight in enumerate(self.model):
            rows = Between.apply(rows * weight, lambda number=number: call(number))  # type: ignore[no-untyped-call]
        self.loss = rows

    def gradient(self, number: int) -> float | None:
        """Return the gradient of a layer."""
        found = self.model[number].grad
        return None if found is None else float(found)


def overlaps(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    def wait(number: int) -> None:
        if number == 0:
            eventually(lambda: chain.gradient(3) == 1.5)

    with joined(rank, size, folder) as strategy:
        chain = Chain(rank, wait)
        chain.state.backward(strategy, chain.loss)
        assert [chain.gradient(number) for number in range(4)] == [1.5] * 4


def test_a_gradient_is_reduced_before_the_pass_has_ended(tmp_path: Path) -> None:
    assert ranks.run(overlaps, 2, str(tmp_path)) == [None, None]


def dies(say: Callable[[Any], None], rank: int, size: int, folder: str) -> list[int]:
    computed = []

    def call(number: int) -> None:
        computed.append(number)
        if rank == 1 and number == 2:
            eventually(lambda: chain.gradient(3) == 1.5)
            os._exit(0)
        if rank == 0 and number == 1:
            begun = strategy._overlap
            assert begun is not None
            eventually(lambda: strategy.lost and all(one.wait(0.0) for one in begun._outcomes))

    strategy = joined(rank, size, folder)
    overlap.BUCKET_BYTES = 1
    chain = Chain(rank, call)
    with pytest.raises(PeerLost, match="rank 1"):
        chain.state.backward(strategy, chain.loss)
    return computed


def test_a_pass_ends_when_a_rank_is_lost(tmp_path: Path) -> None:
    assert ranks.run(dies, 2, str(tmp_path)) == [[3, 2, 1], None]


def raises(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    raised = Path(folder, "raised")

    def call(number: int) -> None:
        if rank == 0 and number == 2:
            raised.touch()
            raise ValueError("a defect")
        if rank == 1 and number == 3:
            eventually(raised.exists)

    with joined(rank, size, folder) as strategy:
        chain = Chain(rank, call)
        if rank == 0:
            with pytest.raises(ValueError, match="a defect"):
                chain.state.backward(strategy, chain.loss)
            assert chain.gradient(3) == 1.5, "nothing is written any more"
            return
        with pytest.raises(PeerLost, match="rank 0"):
            chain.state.backward(strategy, chain.loss)


def test_a_pass_that_raises_waits_for_the_calls_that_have_begun(tmp_path: Path) -> None:
    assert ranks.run(raises, 2, str(tmp_path)) == [None, None]


def differs(say: Callable[[Any], None], rank: int, size: int, folder: str, what: str) -> str:
    with joined(rank, size, folder) as strategy:
        net = Net(checkpoints=True) if what == "twice" else Net()
        if what == "twice":
            net.layers[0] = net.layers[3]
        if what == "frozen":
            net.heads[rank].requires_grad_(False)
        if what == "fewer":
            net.heads[2].requires_grad_(rank == 1)
        state = TrainingState(net, torch.optim.SGD(net.parameters()))
        loss = net(torch.ones(2, WIDTH, requires_grad=True))
        if what == "late":
            state.backward(strategy, loss)
            loss = net(torch.ones(2, WIDTH))
        with pytest.raises(ConfigError) as raised:
            state.backward(strategy, loss)
        return str(raised.value)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("twice", r'parameter "layers.0.bias" is computed twice in one backward pass'),
        ("late", r"is computed after step.backward\(\), which has reduced it"),
        ("frozen", r'"heads.0.bias": absent on rank 0'),
        ("fewer", r'"heads.2.bias": absent on rank 0'),
    ],
)
def test_what_cannot_be_reduced_is_refused(tmp_path: Path, what: str, text: str) -> None:
    for said in ranks.run(differs, 2, str(tmp_path), what):
        assert re.search(text, said), said
