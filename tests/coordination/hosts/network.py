"""Hosts on one machine: namespaces with an address, a name, processes and shared memory of their own, and links to cut.

All of it belongs to processes that end when their standard input does, so nothing is left after a test, whatever
becomes of it: the kernel removes a namespace with its last process, and a link with its namespace.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from functools import cache
from types import TracebackType
from typing import Self

#: Of all namespaces together: a user without rights may make the others in it.
_OWN_USER = ["unshare", "--user", "--map-root-user"]
_SWITCH = [*_OWN_USER, "--net", "--fork", "--kill-child"]
_HOST = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"]
# Namespaces by their names in /proc, with the flags that `setns` takes. That of users comes first: it gives the rights
# for the others.
_KINDS = {"user": 0x10000000, "net": 0x40000000, "uts": 0x04000000, "mnt": 0x00020000, "pid": 0x20000000}
_CLONE_FS = 0x00000200
# No interface has it: what is sent there is lost, and the sender is told nothing.
_NOWHERE = "02:00:00:00:00:01"

_READY = "echo ready; exec cat >/dev/null"


class Host:
    """A host of a network.

    Attributes:
        name: Name of the host, which no other host can look up.
        address: Address of the host on the network.
        pid: Number of a process on the host.
    """

    def __init__(self, network: Network, number: int) -> None:
        self.name = f"host{number}"
        self.address = f"10.77.0.{number}"
        self._network = network
        self._link = f"link{number}"
        inside = f"hostname {self.name}; mount -t tmpfs -o size=512m,mode=1777 shm /dev/shm; ip link set lo up; {_READY}"
        enter = ["nsenter", "--target", str(network.pid), "--user", "--net", "--preserve-credentials"]
        self._holder = _held([*enter, *_HOST, "sh", "-ec", inside])
        [self.pid] = _descendants(self._holder.pid)[-1:]
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


class Network:
    """Hosts, connected by a switch; a context manager."""

    def __init__(self) -> None:
        self.hosts: list[Host] = []
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
        """Remove all hosts."""
        for host in self.hosts:
            host.end()
        _end(self._holder)

    def host(self) -> Host:
        """Add a host."""
        self.hosts.append(Host(self, len(self.hosts) + 1))
        return self.hosts[-1]

    def run(self, *command: str) -> None:
        """Run a command where the links of all hosts end."""
        _run(["nsenter", "--target", str(self.pid), "--user", "--net", "--preserve-credentials", *command])


@cache
def why_not() -> str:
    """Return why this machine has no networks; empty if it has."""
    try:
        with Network() as network:
            network.host()
    except (OSError, subprocess.CalledProcessError, RuntimeError) as error:
        told = getattr(error, "stderr", "") or error
        return f"no namespaces with links on this machine: {told}"
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
    finally:
        for fd in descriptors.values():
            os.close(fd)


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
