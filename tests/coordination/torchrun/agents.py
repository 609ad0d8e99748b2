"""Real torchrun agents, seen from a test, and the script that their workers run."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from waiting import Lines

SCRIPT = Path(__file__).with_name("agent_script.py")


class Agent(Lines):
    """A torchrun with the coordinator as its rendezvous; its workers report events."""

    def __init__(self, address: str, seat: int, folder: Path, *options: str, nnodes: str = "2") -> None:
        super().__init__(
            [
                "-m",
                "torch.distributed.run",
                "--rdzv-backend=softs",
                f"--rdzv-endpoint={address}",
                "--rdzv-id=job",
                f"--rdzv-conf=seat={seat},worker_id=node-{seat}",
                f"--nnodes={nnodes}",
                "--nproc-per-node=1",
                *options,
                str(SCRIPT),
                str(folder),
            ]
        )

    def lose(self) -> None:
        """Kill the agent and its workers at once, as if the machine were gone."""
        for process in [self.process.pid, *_children(self.process.pid)]:
            os.kill(process, signal.SIGKILL)
        super().kill()

    def kill(self) -> None:
        """End all that is left."""
        if self.process.poll() is None:
            self.lose()
        else:
            super().kill()


def _children(parent: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(status.parent.name))
    return found


if __name__ == "__main__":
    sys.exit("this is no script")
