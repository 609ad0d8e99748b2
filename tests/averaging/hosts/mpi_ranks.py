"""What ranks of a real MPI library do in tests: `mpiexec -n 3 python mpi_ranks.py FOLDER SCENARIO [ARGUMENTS as JSON]`.

Each rank writes what it has seen to FOLDER/RANK.json.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from mpi4py import MPI
from torch_ranks import Builder, net, value_of
from two_hosts import pretend, publish, take, tensors
from waiting import eventually

from softs_fast.averaging import Refused
from softs_fast.averaging.hosts.group_board import GroupBoard
from softs_fast.averaging.meeting import meet_by_mpi
from softs_fast.averaging.spawn_policy import (
    AsyncSelectiveAveragingPolicympi4pyFast,
    AsyncSelectiveAveragingPolicympi4pyGeneral,
    AverageAllPolicympi4py,
)

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()


def main() -> None:
    folder, scenario = Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    arguments = json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
    try:
        told = SCENARIOS[scenario](folder, **arguments)
    except BaseException:
        # The end of MPI would wait for ranks that have gone, and they for this one.
        traceback.print_exc()
        WORLD.Abort(1)
        raise
    write(folder, RANK, told)


def write(folder: Path, name: object, told: Any) -> None:
    """Write what was seen, all at once."""
    draft = folder / f".{name}"
    draft.write_text(json.dumps(told))
    draft.rename(folder / f"{name}.json")


def policies(folder: Path, hosts: list[int]) -> Any:
    """Each policy over MPI: what it makes of the weights, and what it says."""
    pretend(hosts[RANK])
    model = net(float(2**RANK))
    averaged = AverageAllPolicympi4py(average_every=2)
    infos = [averaged(iteration, model, None)[2] for iteration in (0, 1)]
    averaged.shutdown()
    told: dict[str, Any] = {"all": {"value": value_of(model), "infos": infos}}
    told["fast"] = selective(AsyncSelectiveAveragingPolicympi4pyFast, "best_only")
    told["general"] = selective(AsyncSelectiveAveragingPolicympi4pyGeneral, "mean")
    return told


def selective(kind: Any, strategy: str) -> dict[str, Any]:
    builder = Builder()
    model: torch.nn.Module = net(float(RANK))
    optimizer: Any = None
    arguments = {"replacement_mode": "worst_ratio", "averaging_strategy": strategy, "replacement_ratio": 0.4}
    policy = kind(builder, model, 2, **arguments)
    replaced = []
    iteration = 0
    done = None
    # Ranks go on until the worst one was replaced.
    while done is None or not done.Test():
        model, optimizer, info = policy(iteration, model, optimizer, 0.9 if RANK else 0.1)
        if info["is_replaced"]:
            replaced.append(info)
        if done is None and (replaced or RANK):
            done = WORLD.Ibarrier()
        iteration += 1
        time.sleep(0.001)
    value, n_built = value_of(model), builder.n_calls
    policy.print_time()
    policy.print_stats()
    policy.shutdown()
    policy.shutdown()
    return {
        "value": value,
        "n_built": n_built,
        "first": replaced[0] if replaced else None,
        "stats": {name: list(numbers) for name, numbers in policy.stats.items()},
        "counts": [policy.num_replacements, policy.myrank, policy.comm_size],
    }


def opened(n: int) -> GroupBoard:
    board = meet_by_mpi(WORLD, 0.001)
    board.open(tensors(0.0, n))
    return board


def stress(folder: Path, n_reads: int, n: int) -> Any:
    """Rank 0 reads from the others, of other hosts, which publish without end; every version has one value."""
    pretend(RANK)
    board = opened(n)
    done = None
    seen: dict[int, int] = {rank: 0 for rank in range(1, SIZE)}
    n_read = n_refused = value = 0
    if RANK == 0:
        eventually(lambda: all(one.version for one in board.members()), "all have published")
        into = tensors(-1.0, n)
        for number in range(n_reads):
            donor = 1 + number % (SIZE - 1)
            found = take(board, [(donor, 1.0)])
            if isinstance(found, Refused):
                n_refused += 1
                continue
            found.apply(into)
            (one,) = found.donations
            expected = float(one.version % 1000)
            values = {x for tensor in into.values() for x in tensor.view(-1).double().unique().tolist()}
            # A bfloat16 has 8 bits of precision.
            rounded = torch.tensor(expected).bfloat16().item()
            assert values == {expected, rounded}, (one, sorted(values)[:5])
            assert one.version >= seen[donor], (one, seen)
            seen[donor] = one.version
            n_read += 1
        done = WORLD.Ibarrier()
    else:
        done = WORLD.Ibarrier()
    while not done.Test():
        if RANK:
            value += 1
            publish(board, float(value % 1000), n)
        else:
            time.sleep(0.001)
    board.close()
    return {"n_read": n_read, "n_refused": n_refused, "published": value}


def lost(folder: Path, how: str) -> None:
    """Rank 1 kills or stops itself; rank 0 goes on with rank 2. MPI cannot end well after that."""
    pretend(RANK)
    board = opened(1000)
    publish(board, float(RANK))
    eventually(lambda: sum(one.version for one in board.members()) == SIZE - 1, "all have published")
    if RANK == 1:
        write(folder, "pid", os.getpid())
        eventually((folder / "ready.json").exists, "rank 0 has read")
        os.kill(os.getpid(), signal.Signals[how])
    if RANK:
        eventually((folder / "0.json").exists, "rank 0 has ended")
        os._exit(0)

    def alive() -> set[int]:
        return {one.rank for one in board.members() if one.alive}

    first = take(board, [(1, 0.5), (2, 0.5)])
    assert not isinstance(first, Refused), first
    write(folder, "ready", True)
    eventually(lambda: 1 not in alive(), "rank 1 is missed")
    refused = take(board, [(1, 1.0)])
    after = take(board, [(2, 1.0)])
    assert not isinstance(after, Refused), after
    told = {"alive": sorted(alive()), "refused": isinstance(refused, Refused)}
    board.close()
    told["threads"] = [thread.name for thread in threading.enumerate() if thread.name.startswith("softs")]
    write(folder, 0, told)
    with suppress(ProcessLookupError):
        os.kill(json.loads((folder / "pid.json").read_text()), signal.SIGKILL)
    os._exit(0)


SCENARIOS: dict[str, Callable[..., Any]] = {"policies": policies, "stress": stress, "lost": lost}

if __name__ == "__main__":
    main()
