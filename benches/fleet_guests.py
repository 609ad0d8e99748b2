"""State machines of Python in the fleet that `fleet_sim` simulates: timers on its hosts, messages over its lines."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from benches import rust_examples

NS = 1_000_000_000
#: No fault lasts longer.
FOREVER = (1 << 63) // NS


class SimulatedFleet:
    """One run; the same arguments and the same program give the same run.

    What happens on a host, be it a timer or the arrival of a message, happens while the host runs, and sets timers and
    sends messages of this host.

    Args:
        scenario: Faults of the fleet, such as "steady".
        options: Options of `fleet_sim`, without their dashes.

    Attributes:
        now_s: Virtual time.
        here: The host on which something happens now.
    """

    def __init__(self, scenario: str, **options: object) -> None:
        words = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]
        self._process = subprocess.Popen(
            [rust_examples.path("fleet_sim"), scenario, "--guided", "1", *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._due: dict[int, Callable[[], None]] = {}
        self._n_tags = 0
        self.now_s, self.here = 0.0, 0

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the simulation, also one that is not over."""
        self._process.kill()
        self._process.communicate()

    def run(self, begin: Callable[[], None]) -> dict[str, Any]:
        """Run to the end; `begin` is called at time 0, on host 0.

        Returns:
            The report of `fleet_sim`.

        Raises:
            ExampleError: the simulation failed; the cause is on standard error.
        """
        for line in self._output:
            if line.startswith("{"):
                report: dict[str, Any] = json.loads(line)
                return report
            now, self.here, tag = map(int, line.split())
            self.now_s = now / NS
            (self._due.pop(tag) if tag else begin)()
            self._say("go")
            self._input.flush()
        raise rust_examples.ExampleError("the simulation has ended early")

    def at(self, host: int, time_s: float, what: Callable[[], None]) -> None:
        """Have something happen on a host, then or now if that is past; while the host stands still it waits."""
        # Never sooner: a machine that is asked too early waits for the same moment again.
        self._say("at", host, int(time_s * NS) + 1, self._tag(what))

    def later(self, delay_s: float, what: Callable[[], None]) -> None:
        """Have something happen on this host."""
        self.at(self.here, self.now_s + delay_s, what)

    def send(self, to: int, n_bytes: int, what: Callable[[], None]) -> None:
        """Send so many bytes to a host, on which something happens when they arrive."""
        self._say("send", self.here, to, n_bytes, self._tag(what))

    def take(self, rank: int, n: int, what: Callable[[], None]) -> None:
        """Have a student take n samples, in place of what it was taking; then something happens on its host."""
        self._say("take", rank, n, self._tag(what))

    def start(self, host: int) -> None:
        """Start the link of a host with teachers."""
        self._say("start", host)

    def drain(self, host: int) -> None:
        """Have a host give back what its suppliers have not begun, and take no more."""
        self._say("drain", host)

    def end(self, host: int) -> None:
        """End the link of a host."""
        self._say("end", host)

    def freeze(self, hosts: range, lasts_s: float = FOREVER) -> None:
        """Have hosts stand still."""
        self._say("freeze", hosts.start, hosts.stop, round(lasts_s * NS))

    def cut(self, hosts: range, lasts_s: float) -> None:
        """Cut hosts off from all others, both ways."""
        self._say("cut", hosts.start, hosts.stop, round(lasts_s * NS))

    def busy_s(self) -> list[float]:
        """Return for each host with teachers how long the calls take that its suppliers have begun so far."""
        self._say("busy")
        self._input.flush()
        return [int(one) / NS for one in self._output.readline().split()]

    def _tag(self, what: Callable[[], None]) -> int:
        self._n_tags += 1
        self._due[self._n_tags] = what
        return self._n_tags

    def _say(self, *words: object) -> None:
        self._input.write(" ".join(map(str, words)) + "\n")
