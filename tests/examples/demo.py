"""An example as a user runs it, marked so that all its processes can be told from others."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import uuid
from pathlib import Path


class Demo:
    """A running example, and the processes that it starts."""

    def __init__(self, *command: str | Path) -> None:
        # Processes inherit it; torchrun gives each rank a session of its own, so sessions would not do.
        self._mark = f"SOFTS_FAST_DEMO={uuid.uuid4().hex}"
        name, _, value = self._mark.partition("=")
        self.process = subprocess.Popen(
            command,
            env={**os.environ, name: value},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.output = self.process.stdout

    def wait_for(self, text: str) -> str:
        """Read the output up to `text`, character by character: a progress bar ends no lines."""
        seen = ""
        while not seen.endswith(text):
            character = self.output.read(1)
            assert character, f"the demo ended before {text!r}:\n{seen}"
            seen += character
        return seen

    def finish(self) -> tuple[int, str]:
        """Read to the end; returns the exit code and what was read."""
        rest = self.output.read()
        return self.process.wait(), rest

    def succeeds(self, picture: Path | None = None) -> str:
        """Read to the end, which must be a good one that leaves no process; returns what was read.

        Args:
            picture: Path of the picture that it has to draw; None: it draws none.
        """
        code, text = self.finish()
        assert code == 0, text
        assert "Traceback" not in text
        assert self.remaining() == []
        assert picture is None or picture.read_bytes().startswith(b"\x89PNG")
        return text

    def remaining(self) -> list[int]:
        """The processes that do not end by themselves: multiprocessing's resource tracker takes a moment."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                pidfd = os.pidfd_open(pid)
                select.select([pidfd], [], [], 20)
                os.close(pidfd)
        return self.processes()

    def processes(self) -> list[int]:
        """The ids of the demo's processes that are alive."""
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._owns(pid)]

    def _owns(self, pid: int) -> bool:
        # Of a process that has ended and was not waited for, and of another user's, it cannot be read.
        with contextlib.suppress(OSError):
            return self._mark.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return False


def interrupt(demo: Demo) -> None:
    """What Ctrl-C in a terminal does."""
    os.killpg(demo.process.pid, signal.SIGINT)


def check_gone(demo: Demo) -> None:
    """Check that an interrupted example ends as it should, and that nothing of it is left."""
    code, text = demo.finish()
    assert code == 130, text
    assert "Traceback" not in text
    assert "interrupted" in text
    assert demo.remaining() == []
