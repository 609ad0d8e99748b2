"""Masters of flows in processes of their own: on a host of a network, or with a journal."""

from __future__ import annotations

import ctypes
import os
import signal
import traceback
from collections.abc import Callable
from typing import Any

import torch
from network import move_to
from small_flow import summary

import softs_fast.dataflow as df
from softs_fast.errors import FlowError

_PR_SET_PDEATHSIG = 1


def run_master(
    say: Callable[[Any], None],
    rank: int,
    size: int,
    host_pid: int,
    function: str,
    options: dict[str, Any],
    n_steps: int,
) -> None:
    """Run steps on a host; says the summary, or the error after the first step."""
    move_to(host_pid)
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        flow = df.Flow.on_hosts(function, **options)
        if n_steps:
            say(summary(flow, n_steps))
        else:
            with flow:
                say(next(flow.steps(1)).number)
                try:
                    list(flow.steps())
                    say("the source has ended")
                except FlowError as error:
                    say(str(error))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def be_master(
    function: str, arguments: dict[str, Any], options: dict[str, Any], n_steps: int, path: str
) -> None:
    """Be a master of workers on hosts until the end; the numbers of the steps go to a file."""
    torch.manual_seed(3)  # for functions without a role
    with df.Flow.on_hosts(function, arguments, **options) as flow, open(path, "a") as file:
        for step in flow.steps(n_steps):
            file.write(f"{step.number} {step.repeated}\n")
            file.flush()
