"""Ranks as processes with a group of gloo: the same function is called in each."""

from __future__ import annotations

import io
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from waiting import WATCHDOG_S

from softs_fast.dataflow.declare.reductions.gloo import GlooRanks

#: Takes the ranks and the own rank.
RankFunction = Callable[[GlooRanks, int], Any]


def of_processes(function: RankFunction, order: list[int]) -> list[Any]:
    """Return what a function returns in each of several processes.

    Args:
        function: Function of a module that processes can import.
        order: Rank of each process in the process group, by its rank here.
    """
    context = multiprocessing.get_context("forkserver")
    with tempfile.TemporaryDirectory() as folder:
        pipes = [context.Pipe(duplex=False) for _ in order]
        processes = [
            context.Process(target=_serve, args=(function, f"{folder}/store", rank, order, pipes[rank][1]))
            for rank in range(len(order))
        ]
        for process, (_, end) in zip(processes, pipes, strict=True):
            process.start()
            end.close()
        results = []
        for begin, _ in pipes:
            assert begin.poll(WATCHDOG_S), "a rank has not answered"
            results.append(torch.load(io.BytesIO(begin.recv_bytes())))
            begin.close()
        for process in processes:
            process.join(WATCHDOG_S)
            assert process.exitcode == 0
            process.close()
    return results


def _serve(function: RankFunction, path: str, rank: int, order: list[int], pipe: Any) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", store=dist.FileStore(path, len(order)), rank=order[rank], world_size=len(order)
    )
    # A pipe would pass tensors in shared memory, which goes with this process.
    found = io.BytesIO()
    torch.save(function(GlooRanks(dist.group.WORLD, order), rank), found)
    pipe.send_bytes(found.getvalue())
    dist.barrier()
    dist.destroy_process_group()
