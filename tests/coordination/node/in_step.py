"""What trainers do in the body of a step, by name."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from right_results import check_results

from softs_fast.coordination.node import WorkerNode
from softs_fast.errors import ConfigError, PeerLost

_LARGE = 100 * 1024 * 1024


def all_results(node: WorkerNode, options: dict[str, Any]) -> None:
    """All that collectives must give, by the collectives of the epoch."""
    assert node.strategy is not None
    check_results(node.strategy, node.rank, node.size)


def large_tensors(node: WorkerNode, options: dict[str, Any]) -> None:
    """Tensors of 100 MiB."""
    strategy = node.strategy
    assert strategy is not None
    tensor = torch.full((_LARGE // 4,), float(node.rank))
    strategy.all_reduce(tensor)
    assert tensor.eq(sum(range(node.size))).all()
    tensor.fill_(node.rank)
    strategy.broadcast_tensor(tensor, node.size - 1)
    assert tensor.eq(node.size - 1).all()


def late_for_large_tensors(node: WorkerNode, options: dict[str, Any]) -> None:
    """A rank is late by more than a machine may leave what was sent to it without an answer."""
    strategy = node.strategy
    assert strategy is not None
    for late in range(node.size):
        tensor = torch.full((_LARGE // 40,), float(node.rank))
        if node.rank == late:
            time.sleep(3.0)
        strategy.broadcast_tensor(tensor, 1 - late)
        assert tensor.eq(1 - late).all()
        strategy.all_reduce(tensor)


def slow(node: WorkerNode, options: dict[str, Any]) -> None:
    """Every 20th step of one rank takes longer than those of the others."""
    if node.rank == options["slow_rank"] and node.committed % 20 == 0:
        time.sleep(0.005)


def lost_in_a_call(node: WorkerNode, options: dict[str, Any]) -> None:
    """Collectives of the user's own; a worker is lost while the others wait for it there."""
    assert node.strategy is not None
    node.strategy.barrier()
    if options.get("signal"):
        os.kill(os.getpid(), options["signal"])
    tensor = torch.full((3,), 2.0)
    node.strategy.all_reduce(tensor)
    assert tensor.eq(2.0 * node.size).all()


def dies_once(node: WorkerNode, options: dict[str, Any]) -> None:
    """A worker is killed, and not again when it was started again."""
    if node.rank == options["victim"]:
        with suppress(FileExistsError):
            Path(options["folder"], "killed").touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)


def different_calls(node: WorkerNode, options: dict[str, Any]) -> None:
    """Ranks do not pass the same tensors, all learn it, and go on."""
    assert node.strategy is not None
    try:
        node.strategy.all_reduce(torch.ones(3 + node.rank))
    except ConfigError:
        node.strategy.barrier()
    else:
        raise ValueError("different calls have passed")


def fails_for_another_reason(node: WorkerNode, options: dict[str, Any]) -> None:
    """A loss in a group of the user's own, of which the coordinator knows nothing."""
    raise PeerLost("a group of the user's own has lost a rank")


IN_STEP = {
    function.__name__: function
    for function in (
        all_results,
        large_tensors,
        late_for_large_tensors,
        slow,
        lost_in_a_call,
        dies_once,
        different_calls,
        fails_for_another_reason,
    )
}
