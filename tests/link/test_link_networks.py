"""A loader and the teachers on two hosts, in network namespaces with a line between: faults of the line and of links.

Each sample is checked: its number is the next one, and all of its bytes are those of that number.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import networks
import pytest
from emulator import Shape
from networks import Host, Network
from process import Process, Zygote
from token_files import token_file
from waiting import eventually

#: Slow enough that a fault meets a stream, which takes seconds then.
FIFTY_MBIT = 50e6
PORT = 4700
#: How long `make stress` has faults of chance.
SECONDS = float(os.environ.get("SOFTS_FAST_STRESS_S", "600"))


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    if reason := networks.why_not(lines=True):
        pytest.skip(reason)
    pytest.importorskip("cryptography", reason="makes certificates")
    with Network() as net:
        for _ in range(2):
            # Many machines have it, or cubic, as their own.
            net.host(switched=False).run("sh", "-c", "echo reno > /proc/sys/net/ipv4/tcp_congestion_control")
        yield net


class Joined:
    """A host of a student and one of teachers, each with a broker, joined by links over a line."""

    def __init__(
        self,
        network: Network,
        folder: Path,
        shape: Shape | None = None,
        version: int = 4,
        mtu: int = 1500,
        connections: int | None = None,
    ) -> None:
        student, teachers = network.hosts
        self.hosts = {"student": student, "teachers": teachers}
        self.version = version
        self.line = network.line(student, teachers, shape or Shape(bits_per_s=FIFTY_MBIT), mtu)
        self._zygote = Zygote.of(Path(__file__).with_name("link_roles.py"), "softs_fast")
        self._folders = {name: folder / name for name in self.hosts}
        self._token = token_file(folder / "token", "a")
        self._processes: list[Process] = []
        address = self.line.address(teachers, version)
        at = f"[{address}]:{PORT}" if version == 6 else f"{address}:{PORT}"
        self._ends: dict[str, dict[str, Any]] = {
            "student": {"connect": [at], "connections": connections},
            "teachers": {"listen": at},
        }
        for name in self.hosts:
            self._folders[name].mkdir()
            self._start(name, name)
        self.student = self._processes[0]
        self.links: dict[str, Process] = {}
        for name in self.hosts:
            self.join(name)

    def __enter__(self) -> Joined:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.kill()
        self.line.end()

    def join(self, name: str) -> None:
        """Start the link of a host, again if it was killed."""
        self.links[name] = self._start("link", name, token=str(self._token), ends=self._ends[name])

    def begin(self, n_batches: int) -> None:
        """Have the student take batches; returns after the first one."""
        self.student.tell(f"take {n_batches}")
        self.student.event("began")

    def took(self) -> int:
        """Wait until the student has the batches, and has checked them; the number of the next sample."""
        n: int = self.student.event("took")["n"]
        return n

    def _start(self, role: str, name: str, **options: object) -> Process:
        options = {"folder": str(self._folders[name]), **options}
        process = self._zygote.fork(role, options, host=self.hosts[name])
        self._processes.append(process)
        process.event("ready")
        return process


def connections_of(joined: Joined) -> list[list[str]]:
    """Return what the kernel of each host tells of each connection with the other one."""
    hosts = list(joined.hosts.values())

    def tell(host: Host, peer: Host) -> list[str]:
        of_it = ["state", "established", "dst", f"[{joined.line.address(peer, joined.version)}]"]
        told = subprocess.run(
            [*host.prefix(), "ss", "-HtinO", *of_it], check=True, capture_output=True, text=True
        )
        return told.stdout.splitlines()

    return [tell(*hosts), tell(*reversed(hosts))]


@pytest.mark.parametrize(
    ("shape", "version", "mtu"),
    [
        (Shape(delay_s=0.01), 6, 1280),
        pytest.param(Shape(delay_s=0.005, loss=0.05, seed=2), 4, 1500, marks=pytest.mark.full),
    ],
    ids=["ipv6_1280", "much_loss"],
)
def test_a_stream_is_whole(network: Network, short_path: Path, shape: Shape, version: int, mtu: int) -> None:
    with Joined(network, short_path, shape, version, mtu) as joined:
        joined.begin(50)
        allowed = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control").read_text().split()
        congestion, n = ("bbr", 1) if "bbr" in allowed else ("reno", 4)
        eventually(lambda: all(len(lines) == n for lines in connections_of(joined)), "all connections")
        assert all(congestion in line for lines in connections_of(joined) for line in lines)
        assert joined.took() == 50 * 8


def test_a_stream_goes_on_after_a_cut_and_with_the_next_link(network: Network, short_path: Path) -> None:
    with Joined(network, short_path, connections=3) as joined:
        joined.begin(50)
        eventually(lambda: all(len(lines) == 3 for lines in connections_of(joined)), "three connections")
        joined.line.cut(*joined.hosts.values())
        # The length of the cut is what is tested: the link notices it.
        time.sleep(2.0)
        joined.line.heal()
        assert joined.took() == 50 * 8
        joined.begin(50)
        joined.links["teachers"].kill()
        joined.join("teachers")
        assert joined.took() == 100 * 8


@pytest.mark.slow
@pytest.mark.timeout(int(SECONDS) + 600)
def test_a_stream_is_whole_whatever_the_line_does(network: Network, short_path: Path) -> None:
    """Minutes of faults of chance: cuts and freezes both ways or one way, lost connections, another address, killed links."""
    seed = int(os.environ.get("SOFTS_FAST_STRESS_SEED", str(random.randrange(10**6))))
    print(f"SOFTS_FAST_STRESS_SEED={seed}")
    chance = random.Random(seed)
    shape = Shape(delay_s=0.01, loss=0.001, seed=seed, bits_per_s=FIFTY_MBIT)
    kinds: Counter[str] = Counter()
    n_batches = 0
    with Joined(network, short_path, shape, connections=chance.choice([None, 4])) as joined:
        line, ends = joined.line, list(joined.hosts.values())
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            joined.begin(100)
            kind = chance.choice(["cut", "cut", "freeze", "connections", "address", "kill", "long cut"])
            kinds[kind] += 1
            some = chance.choice([ends, ends[:1], ends[1:]])
            seconds = chance.uniform(10.0, 70.0) if kind == "long cut" else 10 ** chance.uniform(-1.3, 0.7)
            if kind == "kill":
                name = chance.choice(list(joined.links))
                joined.links[name].kill()
                joined.join(name)
            elif kind == "connections":
                line.drop_connections()
            elif kind == "address":
                # That of the other end stands in the options of the student's link.
                line.readdress(joined.hosts["student"])
            else:
                (line.freeze if kind == "freeze" else line.cut)(*some)
                time.sleep(seconds)
                line.heal()
            n_batches += 100
            assert joined.took() == 8 * n_batches, kinds
    print(f"{n_batches} batches; {dict(kinds)}")
