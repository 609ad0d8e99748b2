"""The process of one step: a session of its own, with its output in a pipe, and its result in another one."""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["TELL_PLACES", "main"]

#: On this signal a process of a step writes where its threads are, forks of it too.
TELL_PLACES = signal.SIGUSR1


def main(function: str, quick: bool, needs_gpu: bool, result: Connection, output: Connection) -> None:
    """Run a step and send what becomes of it.

    Args:
        function: Function of the step as `module:name`.
        quick: Argument of the function.
        needs_gpu: Whether to leave the step out on the stand-in for CUDA.
        result: Connection that takes one JSON object: `state` (passed, skipped or failed), `reason`, `result`.
        output: Connection that takes what the step prints.
    """
    # All that it starts is in its session, and can be killed by that.
    os.setsid()
    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    output.close()
    sys.stdout = os.fdopen(1, "w", buffering=1, errors="backslashreplace", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    faulthandler.enable(2)
    faulthandler.register(TELL_PLACES, 2)
    told = _run(function, quick, needs_gpu)
    result.send_bytes(json.dumps(told).encode())
    result.close()


def _run(function: str, quick: bool, needs_gpu: bool) -> dict[str, Any]:
    try:
        if needs_gpu and _is_standin():
            return _told("skipped", "needs CUDA tensors of torch; the stand-in for CUDA has none")
        # No CUDA has been used here, so ranks can be forked.
        ranks = importlib.import_module("softs_fast.gpu.ranks")
        ranks.set_start_method("fork")
        module, _, name = function.partition(":")
        return _told("passed", "", getattr(importlib.import_module(module), name)(quick))
    except Exception as error:
        traceback.print_exc()
        lines = [line for line in str(error).strip().splitlines() if line.strip()]
        # The text of a rank's error ends with the cause.
        cause = lines[-1].strip() if lines else ""
        return _told("failed", f"{type(error).__name__}: {cause}")


def _is_standin() -> bool:
    return bool(importlib.import_module("softs_fast.tensors.cuda").is_standin)


def _told(state: str, reason: str, result: object = None) -> dict[str, Any]:
    return {"state": state, "reason": reason, "result": result}
