"""Hosts on one machine: namespaces with an address, a name, processes and shared memory of their own, and links to cut.

A switch connects hosts without delay. A `Line` connects two of them alone, with a delay, losses, a rate, and faults.

All of it belongs to processes that end when their standard input does, so nothing is left after a test, whatever
becomes of it: the kernel removes a namespace with its last process, and a link with its namespace.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from emulator import Shape

#: Of all namespaces together: a user without rights may make the others in it.
_OWN_USER = ["unshare", "--user", "--map-root-user"]
_SWITCH = [*_OWN_USER, "--net", "--fork", "--kill-child"]
_HOST = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"]
# Namespaces by their names in /proc, with the flags that `setns` takes. That of users comes first: it gives the rights
# for the others.
_KINDS = {"user": 0x10000000, "net": 0x40000000, "uts": 0x04000000, "mnt": 0x00020000, "pid": 0x20000000}
_CLONE_FS = 0x00000200
_PR_SET_DUMPABLE = 4
_PR_SET_PDEATHSIG = 1
# No interface has it: what is sent there is lost, and the sender is told nothing.
_NOWHERE = "02:00:00:00:00:01"

_READY = "echo ready; exec cat >/dev/null"
_EMULATOR = Path(__file__).with_name("emulator_process.py")
_SHORT = Shape()


class Host:
    """A host of a network.

    Attributes:
        name: Name of the host, which no other host can look up.
        address: Address of the host at the switch; empty if it has no link to it.
        pid: Number of a process on the host.
    """

    def __init__(self, network: Network, number: int, switched: bool) -> None:
        self.name = f"host{number}"
        self.address = f"10.77.0.{number}" if switched else ""
        self._network = network
        self._link = f"link{number}"
        inside = f"hostname {self.name}; mount -t tmpfs -o size=512m,mode=1777 shm /dev/shm; ip link set lo up; {_READY}"
        enter = ["nsenter", "--target", str(network.pid), "--user", "--net", "--preserve-credentials"]
        self._holder = _held([*enter, *_HOST, "sh", "-ec", inside])
        [self.pid] = _descendants(self._holder.pid)[-1:]
        if not switched:
            return
        network.run("ip", "link", "add", self._link, "type", "veth", "peer", "eth0", "netns", str(self.pid))
        network.run("ip", "link", "set", self._link, "master", "switch", "up")
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")

    def run(self, *command: str) -> None:
        """Run a command on it, as its root."""
        _run([*self.prefix(), *command])

    def prefix(self) -> list[str]:
        """Return what runs a command on it; the command has the host's own processes only if it forks."""
        return [
            "nsenter",
            "--target",
            str(self.pid),
            "--user",
            "--net",
            "--uts",
            "--mount",
            "--preserve-credentials",
        ]

    def shared_bytes(self) -> int:
        """Return the bytes of its shared memory that are in use, with names and without."""
        there = os.statvfs(f"/proc/{self.pid}/root/dev/shm")
        return (there.f_blocks - there.f_bfree) * there.f_frsize

    def cut(self) -> None:
        """Cut its link to all others, both ways."""
        self._network.run("ip", "link", "set", self._link, "down")

    def mend(self) -> None:
        """Undo `cut`."""
        self._network.run("ip", "link", "set", self._link, "up")

    def silence(self, other: Host) -> None:
        """Have nothing that it sends to another host arrive; what that one sends still does."""
        self.run(
            "ip", "neighbour", "replace", other.address, "lladdr", _NOWHERE, "nud", "permanent", "dev", "eth0"
        )

    def unsilence(self, other: Host) -> None:
        """Undo `silence`."""
        self.run("ip", "neighbour", "del", other.address, "dev", "eth0")

    def end(self) -> None:
        """End all of its processes."""
        _end(self._holder)


class Line:
    """A line between two hosts, as a device of each; a process moves packets between them as a shape says.

    Packets of TCP are as large as the line's MTU at most, and their checksums are complete.

    Args:
        network: Network of the hosts.
        hosts: The two ends; way 0 is what the first one sends.
        number: Number of the line, which the other lines of the network do not have.
        shape: Delay, losses and rate of both ways.
        mtu: Largest packet, bytes.

    Raises:
        RuntimeError: the machine has no TUN devices, or the kernel refuses.
    """

    def __init__(
        self, network: Network, hosts: tuple[Host, Host], number: int, shape: Shape, mtu: int
    ) -> None:
        self._hosts, self._number, self._device = hosts, number, f"line{number}"
        # Last numbers of the addresses.
        self._ends = {hosts[0]: 1, hosts[1]: 2}
        options = {"pids": [host.pid for host in hosts], "device": self._device, "shape": asdict(shape)}
        enter = ["nsenter", "--target", str(network.pid), "--user", "--net", "--preserve-credentials"]
        self._holder = _held([*enter, sys.executable, "-S", str(_EMULATOR), json.dumps(options)])
        try:
            for host in hosts:
                # With so long a queue the kernel drops no packet before the process has seen it.
                host.run("ip", "link", "set", self._device, "mtu", str(mtu), "txqueuelen", "10000", "up")
                self._set_addresses(host)
        except BaseException:
            self.end()
            raise

    def address(self, host: Host, version: int = 4) -> str:
        """Return the address of an end, of IPv4 or IPv6."""
        net = f"10.78.{self._number}." if version == 4 else f"fd78:{self._number}::"
        return f"{net}{self._ends[host]}"

    def readdress(self, host: Host) -> None:
        """Give an end other addresses; what is sent to the old ones is lost, and the sender is told nothing."""
        self._ends[host] += 2
        host.run("ip", "address", "flush", "dev", self._device)
        self._set_addresses(host)

    def cut(self, *senders: Host) -> None:
        """Lose what these hosts send, both if none is named, and what of it is on its way."""
        self._obey("cut", senders)

    def freeze(self, *senders: Host) -> None:
        """Keep what these hosts send on its way, both if none is named."""
        self._obey("freeze", senders)

    def heal(self) -> None:
        """End all cuts and freezes; what was frozen arrives."""
        self._obey("heal")

    def drop_connections(self) -> None:
        """Lose all packets of the present connections of TCP from now on, as a router that has lost its table does."""
        self._obey("drop_connections")

    def counts(self, sender: Host) -> dict[str, int]:
        """Return what has become of the packets of a host so far: `sent`, `lost`, `dropped`, `arrived`."""
        return self._obey("counts")[self._hosts.index(sender)]

    def end(self) -> None:
        """Remove it."""
        _end(self._holder)

    def _set_addresses(self, host: Host) -> None:
        for version, bits, options in ((4, 24, []), (6, 64, ["nodad"])):
            address = f"{self.address(host, version)}/{bits}"
            host.run("ip", "address", "add", address, "dev", self._device, *options)

    def _obey(self, name: str, senders: tuple[Host, ...] = ()) -> list[dict[str, int]]:
        ways = [self._hosts.index(host) for host in senders or self._hosts]
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._holder.stdin.write(json.dumps([name, ways]) + "\n")
        self._holder.stdin.flush()
        counts: list[dict[str, int]] = json.loads(self._holder.stdout.readline())
        return counts


class Network:
    """Hosts, connected by a switch or by lines; a context manager."""

    def __init__(self) -> None:
        self.hosts: list[Host] = []
        self.lines: list[Line] = []
        self._holder = _held(
            [*_SWITCH, "sh", "-ec", f"ip link add switch type bridge; ip link set switch up; {_READY}"]
        )
        [self.pid] = _descendants(self._holder.pid)[-1:]

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove all lines and hosts."""
        for line in self.lines:
            line.end()
        for host in self.hosts:
            host.end()
        _end(self._holder)

    def host(self, switched: bool = True) -> Host:
        """Add a host, with a link to the switch or without."""
        self.hosts.append(Host(self, len(self.hosts) + 1, switched))
        return self.hosts[-1]

    def line(self, first: Host, second: Host, shape: Shape = _SHORT, mtu: int = 1500) -> Line:
        """Add a line between two hosts; see `Line`."""
        self.lines.append(Line(self, (first, second), len(self.lines) + 1, shape, mtu))
        return self.lines[-1]

    def run(self, *command: str) -> None:
        """Run a command where the links of all hosts end."""
        _run(["nsenter", "--target", str(self.pid), "--user", "--net", "--preserve-credentials", *command])


@cache
def why_not(lines: bool = False) -> str:
    """Return why this machine has no networks, or none with lines; empty if it has."""
    try:
        with Network() as network:
            first = network.host()
            if lines:
                network.line(first, network.host())
    except (OSError, subprocess.CalledProcessError, RuntimeError) as error:
        told = str(getattr(error, "stderr", "") or error).strip()
        return f"no namespaces with {'lines' if lines else 'links'} on this machine: {told}"
    return ""


def move_to(pid: int) -> None:
    """Move this process to the host of another one; processes that it forks have the host's own numbers.

    It must have one thread.

    Raises:
        OSError: the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    descriptors = {kind: os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in _KINDS}
    try:
        for call in (
            lambda: libc.unshare(_CLONE_FS),
            *(lambda fd=fd, kind=kind: libc.setns(fd, _KINDS[kind]) for kind, fd in descriptors.items()),  # type: ignore[misc]
        ):
            if call() != 0:
                raise OSError(ctypes.get_errno(), "cannot move to a host")
        # What runs there may open descriptors of it, as if it had been executed there.
        libc.prctl(_PR_SET_DUMPABLE, 1)
    finally:
        for fd in descriptors.values():
            os.close(fd)


def enter(pid: int) -> None:
    """Go on as a process of the host of another one; the caller's process waits for it, and ends as it does.

    It must have one thread. If it is killed, the one on the host is, too.

    Raises:
        OSError: the kernel refuses.
    """
    move_to(pid)
    child = os.fork()
    if child:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _held(command: list[str]) -> subprocess.Popen[str]:
    """Start a process that is ready, and ends with its standard input."""
    holder = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    if holder.stdout.readline() != "ready\n":
        holder.kill()
        raise RuntimeError(holder.communicate()[1].strip() or "it has ended")
    return holder


def _end(holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.communicate()


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)


def _descendants(pid: int) -> list[int]:
    """Return a process's descendants, of which each has one child."""
    found: list[int] = []
    while True:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            children = file.read().split()
        if not children:
            return found
        pid = int(children[0])
        found.append(pid)
