"""What a strategy must give in every call, where other libraries give wrong results without an error."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
import torch

from softs_fast.collectives import Strategy
from softs_fast.errors import ConfigError


def check_results(strategy: Strategy, rank: int, size: int) -> None:
    """Make all checks; a call of all ranks, of 3 or more."""
    for check in (
        each_step_has_its_own_sum,
        repeated_broadcasts_have_new_values,
        tensors_are_matched_by_name,
        a_mean_is_over_all_ranks,
        absent_and_short_tensors_are_refused,
        no_gradient_on_any_rank_is_none,
        unsuitable_gradients_are_named_on_all_ranks,
        unsuitable_tensors_are_errors_of_all_ranks,
        every_bit_of_a_dtype_counts,
        views_are_reduced_where_they_lie,
        no_remainder_is_dropped,
        autograd_uses_no_value_from_before_a_call,
    ):
        check(strategy, rank, size)
        strategy.barrier()


def autograd_uses_no_value_from_before_a_call(strategy: Strategy, rank: int, size: int) -> None:
    """Weights that a call has written between forward and backward give an error, and no wrong gradients."""
    parts = torch.ones(size * 2)
    calls: list[Callable[[torch.Tensor], object]] = [
        lambda tensor: strategy.broadcast_tensor(tensor, 0),
        strategy.all_reduce,
        lambda tensor: strategy.all_reduce_gradients({"weight": tensor}),
        lambda tensor: strategy.reduce_scatter(tensor, parts),
        lambda tensor: strategy.all_gather(tensor.expand(size, 2).contiguous(), tensor),
    ]
    for number, call in enumerate(calls):
        weight = torch.full((2,), 100.0, requires_grad=True)
        loss = weight.square().sum()
        call(weight.detach())
        if number < 4:  # the last call reads it alone
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()
        else:
            loss.backward()
    output = torch.zeros(size * 2)
    version = output._version
    strategy.all_gather(output, torch.ones(2))
    assert output._version > version


def each_step_has_its_own_sum(strategy: Strategy, rank: int, size: int) -> None:
    """A rank that is slow, the first one or another, never gets a step of the faster ones, nor they an old one."""
    for step in range(200):
        if step % 20 == 0 and rank == step // 20 % size:
            time.sleep(0.005)
        tensor = torch.full((5,), float(1000 * step + rank))
        strategy.all_reduce(tensor)
        assert tensor.eq(size * 1000 * step + sum(range(size))).all(), step


def repeated_broadcasts_have_new_values(strategy: Strategy, rank: int, size: int) -> None:
    for turn in range(3):
        for root in range(size):
            tensor = torch.full((7,), 100 * turn + rank)
            strategy.broadcast_tensor(tensor, root)
            assert tensor.eq(100 * turn + root).all(), (turn, root)


def tensors_are_matched_by_name(strategy: Strategy, rank: int, size: int) -> None:
    names = [f"layer{number}" for number in range(6)]
    gradients = {name: torch.full((1 + number % 2,), float(number)) for number, name in enumerate(names)}
    for turn in range(3):
        order = names[rank + turn :] + names[: rank + turn]
        others = {"empty": torch.empty(0), "half": torch.full((7, 3), rank, dtype=torch.bfloat16)}
        strategy.all_reduce_gradients({name: gradients[name] for name in order} | others, "mean")
        assert others["half"].eq((size - 1) / 2).all()
        for number, name in enumerate(names):
            assert gradients[name].eq(number).all()


def a_mean_is_over_all_ranks(strategy: Strategy, rank: int, size: int) -> None:
    """Not over nodes of different sizes, and not a sum."""
    values = [4.0**other for other in range(size)]
    wanted = sum(values) / size
    tensor = torch.tensor([values[rank]])
    strategy.all_reduce(tensor, "mean")
    gradients = {"a": torch.tensor([values[rank]])}
    strategy.all_reduce_gradients(gradients)
    part = torch.empty(1)
    strategy.reduce_scatter(part, torch.full((size,), values[rank]), "mean")
    assert [float(tensor), float(gradients["a"]), float(part)] == pytest.approx([wanted] * 3)
    # Sums of half precision overflow where their mean does not.
    half = torch.full((3,), 30000.0 + 1024 * rank, dtype=torch.float16)
    halves = {"small": half.clone(), "large": half.repeat(20_000), "other": half.clone().float()}
    strategy.all_reduce(half, "mean")
    strategy.all_reduce_gradients(halves)
    for one in (half, *halves.values()):
        torch.testing.assert_close(
            one.float(), torch.full_like(one.float(), 30000.0 + 512 * (size - 1)), rtol=2e-3, atol=0
        )
    total = torch.tensor([values[rank]])
    strategy.all_reduce(total)
    assert float(total) == sum(values)


def absent_and_short_tensors_are_refused(strategy: Strategy, rank: int, size: int) -> None:
    odd = rank == 1
    full = torch.ones(4)
    for gradients, text in (
        ({"a": full} if odd else {"a": full, "b": full}, '"b"'),
        ({"a": torch.ones(3 if odd else 4)}, '"a"'),
        ({"a": full.double() if odd else full}, '"a"'),
        ({"a": full.view(2, 2) if odd else full}, '"a"'),
    ):
        with pytest.raises(ConfigError, match=text):
            strategy.all_reduce_gradients(gradients)
    with pytest.raises(ConfigError, match="on rank 1"):
        strategy.all_reduce(torch.ones(3 if odd else 4))
    with pytest.raises(ConfigError, match="on rank 1"):
        strategy.all_reduce(torch.ones(4), "mean" if odd else "sum")
    assert full.eq(1).all()


def no_gradient_on_any_rank_is_none(strategy: Strategy, rank: int, size: int) -> None:
    """A parameter without a gradient stays so if no rank has one; it is never zeros, which decay and momentum move."""
    gradient = torch.full((3,), float(rank))
    strategy.all_reduce_gradients({"a": None, "b": gradient, "c": None})
    assert gradient.eq((size - 1) / 2).all()
    strategy.all_reduce_gradients({"a": None})
    own = torch.ones(2)
    with pytest.raises(ConfigError, match=r'"a".*no gradient on rank 0.*float32 \[2\] on rank 1'):
        strategy.all_reduce_gradients({"a": own if rank else None, "b": gradient})
    assert own.eq(1).all()


def unsuitable_gradients_are_named_on_all_ranks(strategy: Strategy, rank: int, size: int) -> None:
    """One rank's sparse or complex gradient is an error of all ranks, not a wait for one that has raised it alone."""
    dense = torch.ones(2, 2)
    for odd in (dense.to_sparse(), dense.to(torch.complex64)):
        for is_odd in (True, rank == 1):
            with pytest.raises(ConfigError, match=r'"emb\.weight"'):
                strategy.all_reduce_gradients({"b": dense, "emb.weight": odd if is_odd else dense})
    assert dense.eq(1).all()


def unsuitable_tensors_are_errors_of_all_ranks(strategy: Strategy, rank: int, size: int) -> None:
    """One rank refuses its arguments: the others get its error, and do not wait for it until they give up."""
    good, whole = torch.ones(2), torch.ones(2 * size)
    odd = {
        "layout sparse_coo": good.to_sparse(),
        "meta": good.to("meta"),
        "complex64": good.to(torch.complex64),
        "share memory": torch.ones(1).expand(2),
    }
    for text, bad in odd.items():
        for given in (bad, bad if rank == 1 else good):
            with pytest.raises(ConfigError, match=rf'argument "tensor" is .*{text}'):
                strategy.all_reduce(given)
            with pytest.raises(ConfigError, match=rf'argument "tensor" is .*{text}'):
                strategy.broadcast_tensor(given, 1)
            with pytest.raises(ConfigError, match=rf'argument "output" is .*{text}'):
                strategy.reduce_scatter(given, whole)
        with pytest.raises(ConfigError, match=r"need the same dtype|all_gather"):
            strategy.all_gather(whole, good[: 2 - (rank == 1)])
    with pytest.raises(ConfigError, match=re.escape(f"root is {size} in a group of {size}")):
        strategy.broadcast_tensor(good, size if rank == 1 else 0)
    assert good.eq(1).all()


def every_bit_of_a_dtype_counts(strategy: Strategy, rank: int, size: int) -> None:
    for dtype, value, wanted in (
        (torch.int64, (1 << 53) + 1, size * ((1 << 53) + 1)),
        (torch.int32, (1 << 24) + 1, size * ((1 << 24) + 1)),
        (torch.float64, 1.0 + 2.0**-50, size * (1.0 + 2.0**-50)),
        (torch.float16, 1.5, 1.5 * size),
        (torch.bfloat16, 1.5, 1.5 * size),
        (torch.uint8, 70, 70 * size % 256),
    ):
        tensor = torch.full((9,), value, dtype=dtype)
        strategy.all_reduce(tensor)
        assert tensor.tolist() == [wanted] * 9, dtype
        part = torch.empty(3, dtype=dtype)
        strategy.reduce_scatter(part, torch.full((3 * size,), value, dtype=dtype))
        assert part.tolist() == [wanted] * 3, dtype
    # Integers are truncated toward zero once, after the sum.
    tensor = torch.tensor([rank, -rank - 1])
    strategy.all_reduce(tensor, "mean")
    assert tensor.tolist() == [1, -2]


def views_are_reduced_where_they_lie(strategy: Strategy, rank: int, size: int) -> None:
    whole = torch.zeros(4, 6)
    view = whole[:, 1::2].t()
    view.fill_(rank)
    strategy.all_reduce(view)
    assert whole[:, 1::2].eq(sum(range(size))).all()
    assert whole[:, ::2].eq(0).all()
    view.fill_(rank)
    strategy.broadcast_tensor(view, 1)
    assert whole[:, 1::2].eq(1).all()
    # Of which the memory has the opposite signs.
    negative = torch.full((2,), complex(0, rank + 1)).conj().imag
    assert negative.is_neg()
    strategy.all_reduce(negative)
    assert negative.eq(-sum(range(size + 1))).all()
    strategy.all_gather(every := torch.zeros(2 * size), torch.full((2,), complex(0, rank)).conj().imag)
    assert every.tolist() == [-float(number) for number in range(size) for _ in range(2)]
    scalar = torch.tensor(float(rank + 1))
    strategy.all_reduce(scalar, "max")
    assert scalar == size
    parameter = torch.nn.Parameter(torch.ones(3))
    strategy.all_reduce(parameter, "mean")
    assert parameter.tolist() == [1.0] * 3
    gathered = torch.zeros(size, 2)
    gathered[rank] = rank
    strategy.all_gather(gathered, gathered[rank])
    assert gathered[:, 0].tolist() == list(range(size))
    source = torch.arange(4.0 * size).view(-1, 2).t()
    target = torch.zeros(2, 6)[:, ::3]
    strategy.reduce_scatter(target, source)
    assert torch.equal(target.reshape(-1), size * source.reshape(size, 4)[rank])


def no_remainder_is_dropped(strategy: Strategy, rank: int, size: int) -> None:
    with pytest.raises(ConfigError, match="one part of equal size per rank"):
        strategy.reduce_scatter(torch.empty(2), torch.ones(2 * size + 1))
    with pytest.raises(ConfigError, match="one part of equal size per rank"):
        strategy.all_gather(torch.empty(2 * size - 1), torch.ones(2))
