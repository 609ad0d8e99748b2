"""Two hosts and a line between them, in network namespaces: plain TCP sockets meet what the line was asked for."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import networks
import pytest
from emulator import Shape
from networks import Host, Network
from process import HERE, Process, Zygote
from script import started
from waiting import eventually


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    if reason := networks.why_not(lines=True):
        pytest.skip(reason)
    with Network() as net:
        net.host(switched=False)
        net.host(switched=False)
        yield net


class Call:
    """A line, a caller on the first host, and a listener on the second one."""

    def __init__(
        self, network: Network, version: int = 4, shape: Shape | None = None, mtu: int = 1500
    ) -> None:
        self.first, self.second = network.hosts
        self.version = version
        self.line = network.line(self.first, self.second, shape or Shape(), mtu)
        talkers = Zygote.of(HERE / "talker.py")
        at = {"address": "::" if version == 6 else "0.0.0.0"}
        self.listener = talkers.fork("listener", at, host=self.second)
        self.caller = talkers.fork("caller", {"seed": 1}, host=self.first)
        self.port: int = self.listener.event("ready")["port"]

    def __enter__(self) -> Call:
        return self

    def __exit__(self, *error: object) -> None:
        self.caller.kill()
        self.listener.kill()
        self.line.end()

    def connect(self) -> int:
        """Make a new connection; the largest segment that the caller sends by it."""
        self.caller.tell(f"connect {self.line.address(self.second, self.version)} {self.port}")
        segment: int = self.caller.event("connected")["segment"]
        return segment

    def send(self, n_bytes: int) -> float:
        """Have the caller send bytes; when it began."""
        self.caller.tell(f"send {n_bytes}")
        at: float = self.caller.event("sending")["at"]
        return at

    def loses(self, sender: Host) -> None:
        """Wait until the line has lost packets of a host."""
        eventually(lambda: self.line.counts(sender)["lost"] > 0, f"{sender.name} loses packets")

    def goes_on_sending(self, before: int) -> None:
        """Wait until the caller has sent a packet and sent it again, after so many others."""
        eventually(lambda: self.line.counts(self.first)["sent"] > before + 1, "it is sent again")


def received(process: Process, n_bytes: int, connection: int = 0) -> float:
    """Wait until a process has received bytes by a connection, and by no other; when it had."""
    while (event := process.event("received"))["n_bytes"] < n_bytes:
        assert event["connection"] == connection
    assert (event["connection"], event["n_bytes"]) == (connection, n_bytes)
    at: float = event["at"]
    return at


@pytest.mark.parametrize(("version", "mtu", "headers"), [(4, 1500, 40), (6, 1280, 60)])
def test_a_round_trip_takes_both_delays_and_packets_fit(
    network: Network, version: int, mtu: int, headers: int
) -> None:
    with Call(network, version, Shape(delay_s=0.05), mtu) as call:
        segment = call.connect()
        # TCP has 12 bytes of time stamps in each.
        assert mtu - headers - 12 <= segment <= mtu - headers
        for number in (1, 2):
            at = call.send(1)
            assert received(call.listener, number) - at >= 0.05
            assert received(call.caller, number) - at >= 0.1


def test_a_cut_stops_one_direction_until_it_is_healed(network: Network) -> None:
    with Call(network) as call:
        call.connect()
        call.send(100)
        received(call.caller, 100)
        call.line.cut(call.first)
        call.send(100)
        call.loses(call.first)
        healed_at = time.monotonic()
        call.line.heal()
        assert received(call.listener, 200) > healed_at
        received(call.caller, 200)
        # Now the other one.
        call.line.cut(call.second)
        call.send(100)
        received(call.listener, 300)
        call.loses(call.second)
        healed_at = time.monotonic()
        call.line.heal()
        assert received(call.caller, 300) > healed_at


def test_a_frozen_line_loses_nothing(network: Network) -> None:
    with Call(network) as call:
        call.connect()
        call.line.freeze()
        before = call.line.counts(call.first)["sent"]
        call.send(100)
        call.goes_on_sending(before)
        healed_at = time.monotonic()
        call.line.heal()
        assert received(call.listener, 100) > healed_at
        received(call.caller, 100)
        assert [call.line.counts(host)["lost"] for host in network.hosts] == [0, 0]


def test_losses_and_a_short_queue_cost_no_byte(network: Network) -> None:
    shape = Shape(delay_s=0.002, loss=0.02, bits_per_s=50e6, queue_bytes=5000, seed=3)
    with Call(network, shape=shape) as call:
        call.connect()
        call.caller.tell("send 400000")
        digest = call.caller.event("sending")["digest"]
        for process in (call.listener, call.caller):
            while (event := process.event("received"))["n_bytes"] < 400_000:
                pass
            assert event["digest"] == digest
        counts = [call.line.counts(host) for host in network.hosts]
        assert all(one["lost"] > 0 for one in counts)
        assert counts[0]["dropped"] > 0


@pytest.mark.parametrize("version", [4, 6])
def test_an_old_connection_is_silent_and_a_new_one_is_not(network: Network, version: int) -> None:
    with Call(network, version) as call:
        for number, change in enumerate(
            (call.line.drop_connections, lambda: call.line.readdress(call.second))
        ):
            call.connect()
            call.send(1)
            received(call.listener, 1, number)
            received(call.caller, 1, number)
            change()
            before = call.line.counts(call.first)["sent"]
            call.send(1)
            call.goes_on_sending(before)
        call.connect()
        call.send(1)
        # Nothing of the others.
        received(call.listener, 1, 2)
        received(call.caller, 1, 2)


MAKE = f"""
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
sys.path.insert(0, {str(HERE)!r})
from networks import Network
with Network() as network:
    hosts = [network.host(switched=False), network.host(switched=False)]
    line = network.line(*hosts)
    print(os.getpid(), network.pid, line._holder.pid, *(host.pid for host in hosts), flush=True)
    time.sleep(3600)
"""


def namespaces(pids: set[int]) -> set[str]:
    """The network namespaces of processes that run."""
    found = set()
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            found.add(os.readlink(f"/proc/{pid}/ns/net"))
    return found


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_network(network: Network, end: signal.Signals) -> None:
    """Not even if the process that made it is killed; a namespace that no process has is gone, with its devices."""
    here = os.readlink("/proc/self/ns/net")
    devices = {path.name for path in Path("/sys/class/net").iterdir()}
    script, pids = started("-c", MAKE)
    assert {path.name for path in Path("/sys/class/net").iterdir()} == devices
    made = namespaces(pids) - {here}
    assert len(made) == 3
    script.send_signal(end)
    assert script.communicate()[1] == ""

    def is_gone() -> bool:
        everywhere = {int(path.name) for path in Path("/proc").glob("[0-9]*")}
        return not pids & everywhere and not made & namespaces(everywhere)

    eventually(is_gone, lambda: f"the end of {pids} and {made}")
