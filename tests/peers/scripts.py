"""Runs a script as an interpreter would, in a fork of a process that has imported torch: that takes three seconds of a core."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess
from typing import NoReturn

from waiting import WATCHDOG_S


def run_script(script: Path, environment: Mapping[str, str] = os.environ) -> CompletedProcess[str]:
    """Run a script in its folder; its exit status, and what it wrote."""
    with tempfile.TemporaryDirectory(prefix="sf") as folder:
        outputs = [Path(folder, name) for name in ("stdout", "stderr")]
        process = multiprocessing.get_context("forkserver").Process(
            target=_become, args=(script, outputs, dict(environment))
        )
        process.start()
        process.join(2 * WATCHDOG_S)
        process.kill()
        process.join()
        status = process.exitcode
        process.close()
        assert status is not None
        return CompletedProcess([str(script)], status, *(output.read_text() for output in outputs))


def _become(script: Path, outputs: list[Path], environment: dict[str, str]) -> NoReturn:
    for number, output in enumerate(outputs, 1):
        file = os.open(output, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", 1, closefd=False)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(script.parent)
    sys.argv[:] = [str(script)]
    sys.path.insert(0, str(script.parent))
    status: object = 0
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        status = end.code
    except BaseException as error:
        traceback.print_exception(error)
        status = 1
    # An interpreter that has imported torch would need a second to end.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(status if isinstance(status, int) else status is not None)
