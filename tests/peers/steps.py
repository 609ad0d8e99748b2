"""kill -9 at every system call of what a segment goes through: ``python steps.py ACTION``.

A child does the action, stopped at the beginning and at the end of each of its system calls (ptrace); it is killed at
the first of these moments, another one at the second, and so on. Names, locks and lengths change at no other moments;
what is stored in mapped memory between two of them is there whole at the second. After each death this process checks
what is left. It prints ``{"steps": number of them, "wrong": [what was not as it must be]}``, or ``{"forbidden": why}``.
"""

import ctypes
import fcntl
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from segments import is_of_softs

from softs_fast import FilesystemMedium, ShmMedium, SoftsError, _core

TRACEME, SYSCALL, SETOPTIONS = 0, 24, 0x4200
EXITKILL = 0x100000
NOT_ALLOWED = 77

SHM = Path("/dev/shm")
SAMPLE = bytes(range(64))

Check = Callable[[], str | None]

ptrace = ctypes.CDLL(None, use_errno=True).ptrace
ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
ptrace.restype = ctypes.c_long


def start(action: Callable[[], object]) -> int:
    """Fork a child that stops, and then does the action."""
    child = os.fork()
    if child == 0:
        if ptrace(TRACEME, 0, None, None) != 0:
            os._exit(NOT_ALLOWED)
        os.kill(os.getpid(), signal.SIGSTOP)
        try:
            action()
        except BaseException:
            # Not back into what its parent is doing.
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def dies_at(step: int, action: Callable[[], object]) -> bool:
    """Let a child do the action until it comes to a step, and kill it there; whether it came there.

    Raises:
        PermissionError: the system does not allow it.
        RuntimeError: the child failed by itself.
    """
    child = start(action)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        raise PermissionError("ptrace is not allowed here")
    ptrace(SETOPTIONS, child, None, EXITKILL)
    for _ in range(step):
        ptrace(SYSCALL, child, None, None)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            if os.WEXITSTATUS(status) != 0:
                raise RuntimeError(f"the child ended with {os.WEXITSTATUS(status)}")
            return False
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def entries() -> set[Path]:
    """Names in shared memory that may be those of a segment."""
    return {path for pattern in ("sl_*", ".sl_*") for path in SHM.glob(pattern)}


def is_owned(path: Path) -> bool:
    """Whether a live process holds the segment, or it has gone meanwhile, or is of softs: tests of that may run too."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return path.name.startswith("sl_") and is_of_softs(path)
    except (FileNotFoundError, BlockingIOError):
        return True


def look_at(address: str) -> None:
    """Attach to what may be half a segment: that fails in good order, or there are slots."""
    try:
        with ShmMedium.attach(address) as medium:
            medium.read(0)
    except SoftsError:
        return


def nothing_left(before: set[Path], living: ShmMedium) -> Check:
    def check() -> str | None:
        for path in entries() - before:
            if path.name.startswith("sl_") and not is_owned(path):
                look_at(path.name)
        # Another test may kill an owner between the sweep and the look.
        for _ in range(10):
            _core.sweep()
            left = [path.name for path in entries() - before if not is_owned(path)]
            if not left:
                break
        else:
            return f"left: {left}"
        return None if living.read(3) == SAMPLE else "the living one has changed"

    return check


def make_segment() -> None:
    ShmMedium(None, 64, 4, create=True)


def make_and_end_segment() -> None:
    medium = ShmMedium(None, 64, 4, create=True)
    medium.unlink()
    medium.close()


def leave_segment() -> None:
    """What a process leaves that was killed."""
    child = os.fork()
    if child == 0:
        medium = ShmMedium(None, 64, 4, create=True)
        os.kill(os.getpid(), signal.SIGKILL if medium.is_owner else signal.SIGTERM)
    os.waitpid(child, 0)


def works(path: Path) -> Check:
    """Another one can have the path, and there is nothing else."""

    def check() -> str | None:
        with FilesystemMedium(str(path), 64, 4, create=True) as medium:
            if not medium.write(3 * medium.slot_stride, SAMPLE) or medium.read(3) != SAMPLE:
                return "it does not keep samples"
            others = [other.name for other in path.parent.iterdir() if other != path]
        return f"left: {others}" if others else None

    return check


def run(before: Callable[[], object], action: Callable[[], object], check: Check) -> dict[str, object]:
    """Let children die at each step of an action, and the last one do all of it."""
    step, wrong, is_dead = 0, [], True
    while is_dead:
        before()
        step += 1
        is_dead = dies_at(step, action)
        problem = check()
        if problem is not None:
            wrong.append(f"step {step}: {problem}")
    return {"steps": step - 1, "wrong": wrong}


def main(action: str) -> dict[str, object]:
    with (
        ShmMedium(None, 64, 4, create=True) as living,
        tempfile.TemporaryDirectory(dir=SHM, prefix="softs-steps-") as folder,
    ):
        living.write(3 * living.slot_stride, SAMPLE)
        path = Path(folder, "slots")
        nothing, is_clean = (lambda: None), nothing_left(entries(), living)
        match action:
            case "create":
                outcome = run(nothing, make_segment, is_clean)
            case "create and end":
                outcome = run(nothing, make_and_end_segment, is_clean)
            case "sweep":
                outcome = run(leave_segment, _core.sweep, is_clean)
            case "create a file":
                outcome = run(
                    lambda: path.unlink(missing_ok=True),
                    lambda: FilesystemMedium(str(path), 64, 4, create=True),
                    works(path),
                )
            case "take a file over":
                outcome = run(
                    lambda: FilesystemMedium(str(path), 64, 4, create=True).close(),
                    lambda: FilesystemMedium(str(path), 4096, 64, create=True),
                    works(path),
                )
            case other:
                raise ValueError(other)
        living.unlink()
    return outcome


if __name__ == "__main__":
    try:
        print(json.dumps(main(sys.argv[1])))
    except PermissionError as error:
        print(json.dumps({"forbidden": str(error)}))
